"""Work under fire: jobs of known answers, and what must be true of them after a fault."""

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
from installation import Server, chat_line, eventually
from ledger import check_job
from openai.types import Batch
from sqlalchemy import func, select

from runner.db.models import Shard
from runner.db.session import SessionFactory
from runner.domain import ids
from runner.domain.ids import JobId
from runner.supervisor import UpState, read_up_state

SLOW_STUB = "slow"
# Longer than a machine stands still, or a worker would lose its leases without a fault of ours.
LEASE_SECONDS = 12.0
Answers = dict[str, str]
T = TypeVar("T")


def slow_line(number: int) -> bytes:
    """A line of a job for the stub."""
    return chat_line(f"r{number}", SLOW_STUB, f"line {number}")


@dataclass(frozen=True)
class Home:
    """An installation at rest that others are copied from, and a key to it."""

    data_dir: Path
    key: str

    def copy_to(self, data_dir: Path) -> None:
        """Make the same of a folder that is not there yet; owners are kept."""
        subprocess.run(["cp", "-a", str(self.data_dir), str(data_dir)], check=True)


@dataclass(frozen=True)
class Reply:
    """One answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - JSON is what it is
        return json.loads(self.body)


@dataclass(frozen=True)
class Fire:
    """One installation and jobs of so many lines on it."""

    server: Server
    lines: int = 140
    line: Callable[[int], bytes] = slow_line

    def submit(self) -> str:
        """Start a job; its batch id."""
        content = b"".join(map(self.line, range(self.lines)))
        with self.server.client() as client:
            file = client.files.create(file=content, purpose="batch")
            return client.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            ).id

    def look(self, batch_id: str) -> Batch:
        """The batch as it stands; without the client, which takes longer to make than to use."""
        answer = self.get(f"/v1/batches/{batch_id}")
        assert answer.status == 200, answer.body
        return Batch.model_validate_json(answer.body)

    def completed(self, batch_id: str) -> int:
        counts = self.look(batch_id).request_counts
        return counts.completed if counts else 0

    def catch(self, seen: Callable[[str], T | None]) -> tuple[str, T]:
        """A job and what was seen of it at work; one that was done too soon is followed by another.

        Jobs are short, and a busy machine may let this process look too late.
        """
        batch_id = self.submit()

        def found() -> tuple[str, T] | None:
            nonlocal batch_id
            is_over = self.look(batch_id).status == "completed"
            sight = seen(batch_id)
            if sight:
                return batch_id, sight
            if is_over:
                batch_id = self.submit()
            return None

        return eventually(found)

    def begin(self) -> str:
        """A job with its first lines done."""

        def is_begun(batch_id: str) -> bool:
            batch = self.look(batch_id)
            done = batch.request_counts.completed if batch.request_counts else 0
            return batch.status == "in_progress" and 0 < done < self.lines

        return self.catch(is_begun)[0]

    def answers(self, batch_id: str) -> Answers:
        """What was answered, by custom id, in the order of the file."""
        file_id = self.look(batch_id).output_file_id
        assert file_id is not None
        with self.server.client() as client:
            rows = map(json.loads, client.files.content(file_id).read().splitlines())
            return {
                row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"]
                for row in rows
            }

    def finish(self, sessions: SessionFactory, batch_id: str, seconds: float = 120) -> Answers:
        """Wait for the end and check every invariant; what was answered."""
        eventually(lambda: self.look(batch_id).status == "completed", seconds)
        with sessions() as session:
            check_job(session, job_id_of(batch_id))
        answers = self.answers(batch_id)
        assert list(answers) == [f"r{number}" for number in range(self.lines)]
        return answers

    def get(self, path: str) -> "Reply":
        """A plain request with the key and without any retry; status 0 where nobody listens."""
        headers = {"Authorization": f"Bearer {self.server.key}"}
        request = urllib.request.Request(f"{self.server.url}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Reply(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            return Reply(error.code, dict(error.headers), error.read())
        except OSError:
            return Reply(0, {}, b"{}")

    def restarts(self) -> dict[str, int]:
        """How often each child was started again."""
        return {name: child.restarts for name, child in self._state().children.items()}

    def is_whole(self) -> bool:
        """Whether all runs that should, and what an earlier test ended is back."""
        state = self._state()
        processes = [*state.children.values(), *state.services.values()]
        return all(process.find() for process in processes) and self.get("/readyz").status == 200

    def child(self, name: str) -> psutil.Process:
        return _process(lambda: self._state().children[name].pid)

    def service(self, name: str) -> psutil.Process:
        return _process(lambda: self._state().services[name].pid)

    def supervisor(self) -> psutil.Process:
        return _process(lambda: self._state().pid)

    def _state(self) -> UpState:
        """What ``tokenmill status`` would say, without a process for each question."""
        state = read_up_state(self.server.data_dir)
        assert state is not None
        return state


def _process(pid: Callable[[], int | None]) -> psutil.Process:
    """The process, once it runs. Of no pid psutil would make the one that asks: a test that stops
    itself."""
    return psutil.Process(eventually(pid))


def job_id_of(batch_id: str) -> JobId:
    job_id = ids.decode(ids.JOB_PREFIX, batch_id)
    assert job_id is not None
    return JobId(job_id)


def attempts(sessions: SessionFactory, batch_id: str) -> int:
    """The most attempts that any shard of a job took."""
    with sessions() as session:
        return (
            session.scalar(
                select(func.max(Shard.attempt)).where(Shard.job_id == job_id_of(batch_id))
            )
            or 0
        )


@contextmanager
def frozen(process: psutil.Process) -> Iterator[None]:
    """A server that hangs: it accepts connections by its backlog and answers nothing."""
    with stopped(process, *process.children(recursive=True)):
        yield


@contextmanager
def stopped(*processes: psutil.Process) -> Iterator[None]:
    """Processes that stand still, whatever those that they started do."""
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):  # it was killed meanwhile
                os.kill(process.pid, signal.SIGCONT)
