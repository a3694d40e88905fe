"""One line as several sequences: its choices run side by side and end as one outcome.

Choices of the same prompt share its blocks through the engine's prefix cache.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runner.domain.leases import LineMetrics
from runner.inference.backend import Completion, LineRefusal, Outcome, Task

SEED_STRIDE = 0x9E3779B97F4A7C15
"""Odd, so no two of 2^64 choices get the same seed; the engine hashes seeds, so any will do."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One sequence of a line.

    Attributes:
        key: unique within a worker's life.
        index: its place among the line's choices on the wire: prompt number times n, plus k.
        prompt: the number of its prompt.
        seed: of its own, by the line's seed and ``index``.
    """

    key: str
    task: Task
    index: int
    prompt: int
    seed: int

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        return self.task.prompts[self.prompt]


@dataclass(slots=True)
class _OpenLine:
    """A line of which choices still run; what ended is kept by index."""

    task: Task
    choices: list[Choice]
    running: dict[str, Choice]
    completions: dict[int, Completion] = field(default_factory=dict)
    metrics: dict[int, LineMetrics] = field(default_factory=dict)
    refusal: LineRefusal | None = None

    def outcome(self) -> Outcome:
        metrics = _line_metrics([(c, self.metrics[c.index]) for c in self.choices])
        if self.refusal is not None:
            return Outcome(self.task, self.refusal, metrics)
        completions = tuple(self.completions[choice.index] for choice in self.choices)
        return Outcome(self.task, completions, metrics)


class OpenLines:
    """The lines inside a backend, each with its choices; it knows nothing of how they run."""

    def __init__(self) -> None:
        self._line_of: dict[str, _OpenLine] = {}  # by the key of each choice that runs
        self._lines: dict[str, _OpenLine] = {}  # by the key of the task
        self._ended: dict[str, _OpenLine] = {}  # by the key of the task

    @property
    def num_choices(self) -> int:
        """Choices that still run."""
        return len(self._line_of)

    def add(self, task: Task) -> list[Choice]:
        """Take in a line; all of its choices count as running."""
        choices = _choices(task)
        line = _OpenLine(task, choices, {choice.key: choice for choice in choices})
        self._lines[task.key] = line
        self._line_of.update(dict.fromkeys(line.running, line))
        return choices

    def choice(self, key: str) -> Choice:
        """A choice that still runs."""
        return self._line_of[key].running[key]

    def end(self, key: str, answer: Completion | LineRefusal | None, metrics: LineMetrics) -> None:
        """A choice ended; None if it was aborted. One refusal makes its whole line fail."""
        line = self._line_of.pop(key)
        index = line.running.pop(key).index
        line.metrics[index] = metrics
        if isinstance(answer, Completion):
            line.completions[index] = answer
        elif answer is not None and line.refusal is None:
            line.refusal = answer
        if line.refusal is not None or not line.running:
            self._ended[line.task.key] = line

    def doomed(self) -> list[str]:
        """The choices that run on although their line has failed; abort and ``end`` them."""
        return [key for line in self._ended.values() for key in line.running]

    def take_ended(self) -> list[Outcome]:
        """The lines that ended since the last call, when no choice of them is doomed."""
        ended, self._ended = self._ended, {}
        for key in ended:
            del self._lines[key]
        return [line.outcome() for line in ended.values()]

    def running(self, task_keys: Iterable[str]) -> list[str]:
        """The keys of all choices of some tasks that still run; unknown tasks are ignored."""
        lines = [self._lines[key] for key in task_keys if key in self._lines]
        return [key for line in lines for key in line.running]

    def drop(self, task_keys: Iterable[str]) -> int:
        """Forget tasks without an outcome; returns the device microseconds of what had ended."""
        spent_us = 0
        for key in task_keys:
            line = self._lines.pop(key, None)
            if line is None:
                continue
            for choice_key in line.running:
                del self._line_of[choice_key]
            self._ended.pop(key, None)
            spent_us += sum(metrics.device_us for metrics in line.metrics.values())
        return spent_us


def _choices(task: Task) -> list[Choice]:
    n, seed = task.request.n, task.request.sampling.seed
    count = n * len(task.prompts)
    return [
        Choice(
            key=task.key if count == 1 else f"{task.key}#{index}",
            task=task,
            index=index,
            prompt=index // n,
            seed=(seed + index * SEED_STRIDE) % (1 << 64) if index else seed,
        )
        for index in range(count)
    ]


def _line_metrics(parts: Sequence[tuple[Choice, LineMetrics]]) -> LineMetrics:
    """What a line took: work adds up, a prompt counts once, and the line waits for its last choice.

    The first choice to run computes the prompt and the others find it cached, so what a prompt
    found in the cache is what its unluckiest choice found.
    """
    if len(parts) == 1:
        return parts[0][1]
    by_prompt: dict[int, list[LineMetrics]] = {}
    for choice, metrics in parts:
        by_prompt.setdefault(choice.prompt, []).append(metrics)
    each = [metrics for _, metrics in parts]
    last = max(each, key=lambda metrics: metrics.total_us)
    return LineMetrics(
        prompt_tokens=sum(group[0].prompt_tokens for group in by_prompt.values()),
        cached_tokens=sum(min(m.cached_tokens for m in group) for group in by_prompt.values()),
        output_tokens=sum(metrics.output_tokens for metrics in each),
        queue_us=last.queue_us,
        prefill_us=last.prefill_us,
        first_token_us=min((m.first_token_us for m in each if m.first_token_us), default=0),
        decode_us=last.decode_us,
        total_us=last.total_us,
        device_us=sum(metrics.device_us for metrics in each),
        preemptions=sum(metrics.preemptions for metrics in each),
        recomputed_tokens=sum(metrics.recomputed_tokens for metrics in each),
    )
