"""What ``up`` runs: the table of child processes, as data."""

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from runner.config import Settings, child_environment
from runner.embedded import ServiceUrls

# Uploads and exports may take long, and a thread that serves one is not a stuck worker.
_WEB_TIMEOUT_SECONDS = 300
_WEB_GRACE_SECONDS = 10
_CPU_GRACE_SECONDS = 30.0
_BEAT_GRACE_SECONDS = 5.0
# OpenMP threads that wait by spinning for long take the cores from the database they wait for.
_SHORT_SPIN = {"GOMP_SPINCOUNT": "10000"}
_CPU_PROCESSES = 2  # of the pool that reads, counts and closes
# Beyond the engine's own grace: the time to hand back its leases and to free its memory.
_HAND_BACK_SECONDS = 10.0


class Role(IntEnum):
    """The kinds of children, in the order in which they are stopped; the start is the reverse."""

    ENGINE = 1
    CPU = 2
    BEAT = 3
    WEB = 4


@dataclass(frozen=True)
class ProcessSpec:
    """One child process.

    Attributes:
        grace_seconds: what it gets between TERM and KILL.
        follows_page: at the start of everything it waits until the page answers, and leaves the
            cores to what people wait for.
    """

    name: str
    role: Role
    command: tuple[str, ...]
    env: Mapping[str, str]
    grace_seconds: float
    follows_page: bool = False


@dataclass(frozen=True)
class UpOptions:
    """What the command line of ``up`` decides."""

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    models: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The page's address, as seen from this machine."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"


def process_table(
    settings: Settings, options: UpOptions, urls: ServiceUrls
) -> tuple[ProcessSpec, ...]:
    """Every child of ``up`` for these services, in the order in which they are started."""
    env = child_environment(settings, urls.database_url, urls.broker_url)
    # Two processes count at once; tokenizers would take a thread for each core in each of them.
    threads = max(1, (os.cpu_count() or 1) // _CPU_PROCESSES)
    counting = {**env, "RAYON_NUM_THREADS": str(threads)}
    engines = tuple(
        ProcessSpec(
            f"engine-{number}",
            Role.ENGINE,
            _engine_command(options.models),
            {**env, **_SHORT_SPIN},
            settings.grace_seconds + _HAND_BACK_SECONDS,
        )
        for number in range(1, options.workers + 1)
    )
    return (
        ProcessSpec("web", Role.WEB, _web_command(options), counting, _WEB_GRACE_SECONDS + 5.0),
        ProcessSpec(
            "beat",
            Role.BEAT,
            _beat_command(settings.data_dir),
            env,
            _BEAT_GRACE_SECONDS,
            follows_page=True,
        ),
        ProcessSpec(
            "cpu", Role.CPU, _cpu_command(), counting, _CPU_GRACE_SECONDS, follows_page=True
        ),
        *engines,
    )


def remove_beat_schedule(data_dir: Path) -> None:
    """Beat's file is a pickle that breaks when beat is killed, and the schedule is in code."""
    for path in _beat_schedule(data_dir).parent.glob(f"{_beat_schedule(data_dir).name}*"):
        path.unlink(missing_ok=True)


def _beat_schedule(data_dir: Path) -> Path:
    return data_dir / "run" / "beat-schedule"


def _web_command(options: UpOptions) -> tuple[str, ...]:
    host = f"[{options.host}]" if ":" in options.host else options.host
    return (
        *(sys.executable, "-m", "gunicorn"),
        *("--worker-class", "web.gunicorn_worker.JsonWorker", "--workers", "1", "--threads", "16"),
        *("--bind", f"{host}:{options.port}"),
        *("--timeout", str(_WEB_TIMEOUT_SECONDS)),
        *("--graceful-timeout", str(_WEB_GRACE_SECONDS)),
        "--no-control-socket",
        "web:create_app()",
    )


def _beat_command(data_dir: Path) -> tuple[str, ...]:
    schedule = str(_beat_schedule(data_dir))
    return (*_celery("runner.beat"), "beat", "--schedule", schedule)


def _cpu_command() -> tuple[str, ...]:
    pool = ("--pool", "prefork", "--concurrency", str(_CPU_PROCESSES))
    return (*_celery("runner.tasks"), "worker", *pool, *_worker("cpu"))


def _engine_command(models: Sequence[str]) -> tuple[str, ...]:
    command = (*_celery("runner.tasks"), "worker", "--pool", "threads", "--concurrency", "1")
    chosen = (word for model in models for word in ("--model", model))
    return (*command, *_worker("engine"), "--engine", *chosen)


def _celery(app: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "celery", "-A", app)


def _worker(queue: str) -> tuple[str, ...]:
    # A new node name at every start: two installations on one host must not be taken for one.
    name = f"{queue}@%h-{secrets.token_hex(3)}"
    return ("-Q", queue, "-n", name, "--without-gossip", "--without-mingle")
