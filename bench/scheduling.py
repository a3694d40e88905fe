"""What admission and order are worth, by the scheduler alone: ``python bench/scheduling.py``.

The real scheduler and block manager plan every step; a model that answers at once takes its place.
Lengths are those of ``mixed`` (bench/workload.py), whose outputs end by themselves for `admission`
(limit 512 for all: the scheduler has to guess) and at their known limit for `tail`.
"""

from dataclasses import dataclass
from pathlib import Path

from workload import lines

from engine.admission import OutputLengths
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler

VOCAB_SIZE = 49_152
LIMIT = 512
BLOCK_SIZE = 32
LINES = 512


class Careless(OutputLengths):
    """Expects nothing to grow: admission by known tokens and watermark, as it was before."""

    def remaining(self, request: Request) -> int:
        """Always one."""
        return 1


class Fearful(OutputLengths):
    """Expects every output to reach its limit."""

    def remaining(self, request: Request) -> int:
        """What is left of the limit."""
        return request.params.max_tokens - request.num_output_tokens


@dataclass(frozen=True, slots=True)
class Totals:
    """What a run took."""

    steps: int
    rows: float  # running on average
    preemptions: int
    recomputed: int
    computed: int

    def __str__(self) -> str:
        share = self.recomputed / self.computed
        return (
            f"{self.steps:6,} steps  {self.rows:5.1f} rows  {self.preemptions:5,} preemptions  "
            f"{self.recomputed:8,} tokens again ({share:.1%})"
        )


class Simulation:
    """The whole workload in the queue at once."""

    def __init__(self, num_blocks: int, rows: int, watermark: float = 0.03) -> None:
        config = EngineConfig(
            model=Path("none"),
            block_size=BLOCK_SIZE,
            max_num_seqs=rows,
            max_num_batched_tokens=256,
            watermark=watermark,
        )
        blocks = BlockManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=True)
        self.scheduler = Scheduler(config, blocks)
        self._ends: dict[str, int] = {}

    def add(self, work: list[dict[str, object]], known: bool) -> None:
        """Queue lines; their lengths are `known` or come out only when they end."""
        for number, line in enumerate(work):
            prompt, end = line["prompt"], line["max_tokens"]
            assert isinstance(prompt, list)
            assert isinstance(end, int)
            params = SamplingParams(max_tokens=end if known else LIMIT, ignore_eos=known)
            self.scheduler.add(Request(str(number), prompt, params))
            self._ends[str(number)] = end

    def run(self) -> Totals:
        """Step until all have ended."""
        scheduler = self.scheduler
        steps = rows = recomputed = computed = 0
        while scheduler.running or scheduler.num_waiting:
            plan = scheduler.schedule(steps)
            steps += 1
            rows += len(scheduler.running)
            for request, num_tokens in zip(plan.requests, plan.num_tokens, strict=True):
                computed += num_tokens
                scheduler.record(request, num_tokens)
                if not request.num_uncomputed_tokens:
                    request.append(0)
                    if request.num_output_tokens == self._ends[request.request_id]:
                        recomputed += request.num_recomputed_tokens
                        scheduler.remove(request)
                        was_cut = request.num_output_tokens == request.params.max_tokens
                        scheduler.lengths.record(request, was_cut)
        return Totals(steps, rows / steps, scheduler.num_preemptions, recomputed, computed)


def admission() -> None:
    """Preemptions on pools of several sizes, by what admission expects."""
    work = lines("mixed", LINES, VOCAB_SIZE)
    for num_blocks in (128, 256, 512):
        for name, lengths in [
            ("known tokens", Careless()),
            ("learned", OutputLengths()),
            ("limits", Fearful()),
        ]:
            simulation = Simulation(num_blocks, rows=64)
            simulation.scheduler.lengths = lengths
            simulation.add(work, known=False)
            print(f"{num_blocks:4} blocks, {name:12} {simulation.run()}")


def tail() -> None:
    """Steps until the last line ends, by order."""
    for count in (80, 128, 256, LINES):
        work = lines("mixed", count, VOCAB_SIZE)
        for name, longest_first in [("as they came", False), ("longest first", True)]:
            simulation = Simulation(num_blocks=2048, rows=64)
            simulation.add(work, known=True)
            simulation.scheduler.longest_first = longest_first
            print(f"{count:4} lines, {name:13} {simulation.run()}")


if __name__ == "__main__":
    admission()
    tail()
