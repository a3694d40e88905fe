"""Running a workload of token ids straight through the engine, as fast as it goes.

A process of its own (``python -m runner.inference.local.bench``), so that the command line needs
no torch and the engine has the machine to itself.
"""

import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams
from runner.config import Settings, load_settings
from runner.domain.errors import InvalidRequest
from runner.inference.local.backend import engine_config

PROFILE, NO_GUESSES = "profile", "no-guesses"
_WARM_UP_TOKENS = 4


class WorkloadLine(msgspec.Struct):
    """One prompt, as token ids, and how many tokens to make of it."""

    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What a run took, from the first line added to the last output."""

    rows: int
    input_tokens: int
    output_tokens: int
    seconds: float
    load_seconds: float
    engine: str
    stats: dict[str, Any]
    token_ids: list[list[int]]
    profile: dict[str, float]

    @property
    def summary(self) -> dict[str, object]:
        """Everything but the ids, with the figure that engines are compared by."""
        return {
            "rows": self.rows,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "seconds": round(self.seconds, 3),
            "output_tokens_per_second": round(self.output_tokens / self.seconds, 2),
            "total_tokens_per_second": round(
                (self.input_tokens + self.output_tokens) / self.seconds, 2
            ),
            "load_seconds": round(self.load_seconds, 2),
            "engine": self.engine,
            "stats": self.stats,
        }


def read_workload(path: Path) -> list[WorkloadLine]:
    """The lines of a workload file, ``{"prompt": [ids], "max_tokens": n}`` each."""
    decoder = msgspec.json.Decoder(WorkloadLine)
    lines = []
    for number, data in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not data.strip():
            continue
        try:
            lines.append(decoder.decode(data))
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"{path}, line {number}: {error}.", param="workload") from None
    if not lines:
        raise InvalidRequest(f"{path} has no line.", param="workload")
    return lines


def bench_config(folder: Path, settings: Settings, guesses: bool) -> EngineConfig:
    """The engine as it serves, but that every line is computed, as peers compute it."""
    config = replace(engine_config(folder, settings), merge_duplicates=False)
    return config if guesses else replace(config, num_speculative_tokens=0)


def run_bench(config: EngineConfig, workload: list[WorkloadLine]) -> BenchResult:
    """Greedy generation of the whole workload with a cold prefix cache; end tokens are ignored."""
    started = time.perf_counter()
    engine = LLMEngine(config)
    engine.add_request("warm-up", [5, 6, 7], SamplingParams(_WARM_UP_TOKENS, ignore_eos=True))
    while engine.has_unfinished():
        engine.step()
    loaded = time.perf_counter()
    before = engine.profile()
    engine.longest_first = True  # the whole work is in the queue
    for number, line in enumerate(workload):
        params = SamplingParams(line.max_tokens, ignore_eos=True)
        engine.add_request(str(number), line.prompt, params)
    ids: list[list[int]] = [[] for _ in workload]
    while engine.has_unfinished():
        for output in engine.step():
            if output.error is not None:
                raise output.error
            ids[int(output.request_id)] = list(output.token_ids)
    seconds = time.perf_counter() - loaded
    return BenchResult(
        rows=len(workload),
        input_tokens=sum(len(line.prompt) for line in workload),
        output_tokens=sum(map(len, ids)),
        seconds=seconds,
        load_seconds=loaded - started,
        engine=engine.description,
        stats=msgspec.to_builtins(engine.stats()),
        token_ids=ids,
        profile={part: spent - before.get(part, 0.0) for part, spent in engine.profile().items()},
    )


def write_ids(path: Path, result: BenchResult) -> None:
    """Write the generated ids, one JSON list of lists, in the order of the workload."""
    path.write_text(json.dumps(result.token_ids))


def main(folder: str, workload: str, out: str, *options: str) -> None:
    """Run and print the summary as JSON; ``out`` may be empty, options are PROFILE, NO_GUESSES."""
    config = bench_config(Path(folder), load_settings(), NO_GUESSES not in options)
    result = run_bench(config, read_workload(Path(workload)))
    if out:
        write_ids(Path(out), result)
    summary = result.summary
    if PROFILE in options:
        summary["profile"] = {part: round(spent, 3) for part, spent in result.profile.items()}
    sys.stdout.write(json.dumps(summary) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
