"""A backend without a model: deterministic, thousands of lines per second, and able to misbehave.

It answers each line with words drawn from a hash of its prompt, so a test of everything around the
engine can compare files byte for byte. Its path says how it behaves, e.g.
``stub:?rows=64&step_ms=20&crash_on=POISON``.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from runner.domain.leases import ItemInput, Lease, LineMetrics
from runner.inference.backend import Completion, LineRefusal, Outcome, Task
from runner.inference.requests import BadBody, Prompt, parse_request

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron")
_CRASH_STATUS = 86


@dataclass(slots=True)
class _Running:
    task: Task
    steps_left: int
    device_us: int = 0


class StubBackend:
    """Runs ``rows`` tasks at once, one word per task and step."""

    def __init__(self, rows: int = 1024, step_ms: float = 0.0, crash_on: str = "") -> None:
        self.rows = rows
        self.description = f"stub: {rows} rows, {step_ms} ms per step"
        self._step_seconds = step_ms / 1000
        self._crash_on = crash_on
        self._waiting: dict[str, Task] = {}
        self._running: dict[str, _Running] = {}
        self._steps = 0

    @classmethod
    def from_path(cls, path: str) -> "StubBackend":
        """The stub that a model's path describes."""
        options = {name: values[-1] for name, values in parse_qs(urlsplit(path).query).items()}
        return cls(
            rows=int(options.get("rows", 1024)),
            step_ms=float(options.get("step_ms", 0)),
            crash_on=options.get("crash_on", ""),
        )

    def prepare(self, lease: Lease, item: ItemInput) -> Task:
        """Parse a line; every word of the prompt counts as one token."""
        try:
            request = parse_request(item.data, lease, item.idx)
        except BadBody as error:
            raise LineRefusal(400, error.code, error.message, error.param) from None
        key = f"{lease.key.job_id}/{item.idx}/{lease.key.epoch}"
        tokens = range(len(_prompt_text(request.prompt).split()))
        return Task(key, lease, item.idx, item.custom_id, request, tuple(tokens))

    def submit(self, task: Task) -> None:
        """Queue a task."""
        self._waiting[task.key] = task

    def step(self) -> list[Outcome]:
        """Give every running task its next word."""
        started = time.perf_counter_ns()
        while self._waiting and len(self._running) < self.rows:
            key = next(iter(self._waiting))
            self._start(self._waiting.pop(key))
        if self._step_seconds:
            time.sleep(self._step_seconds)
        self._steps += 1
        ended = []
        for running in self._running.values():
            running.steps_left -= 1
            if running.steps_left <= 0:
                ended.append(running)
        self._share_time((time.perf_counter_ns() - started) // 1000)
        for running in ended:
            del self._running[running.task.key]
        return [_outcome(running) for running in ended]

    def abort(self, keys: Iterable[str]) -> int:
        """Drop tasks."""
        wasted = 0
        for key in keys:
            self._waiting.pop(key, None)
            running = self._running.pop(key, None)
            wasted += running.device_us if running else 0
        return wasted

    @property
    def unfinished(self) -> int:
        """Tasks submitted and not ended."""
        return len(self._waiting) + len(self._running)

    def stats(self) -> Mapping[str, float]:
        """What runs now."""
        return {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "steps": self._steps,
        }

    def _start(self, task: Task) -> None:
        if self._crash_on and self._crash_on in _prompt_text(task.request.prompt):
            os._exit(_CRASH_STATUS)
        self._running[task.key] = _Running(task, len(_words(task)))

    def _share_time(self, step_us: int) -> None:
        """Split a step's wall time evenly; the remainder goes to the first task."""
        if not self._running:
            return
        share, rest = divmod(step_us, len(self._running))
        for running in self._running.values():
            running.device_us += share + rest
            rest = 0


def _prompt_text(prompt: Prompt) -> str:
    if prompt.messages is not None:
        return "\n".join(message["content"] for message in prompt.messages)
    return prompt.text or " ".join(map(str, prompt.token_ids or ()))


def _words(task: Task) -> list[str]:
    digest = hashlib.blake2b(_prompt_text(task.request.prompt).encode(), digest_size=16).digest()
    limit = task.request.max_tokens or len(digest)
    count = min(limit, 1 + digest[0] % len(digest))
    return [_WORDS[byte % len(_WORDS)] for byte in digest[:count]]


def _outcome(running: _Running) -> Outcome:
    task = running.task
    words = _words(task)
    limit = task.request.max_tokens
    reason = "length" if limit is not None and len(words) >= limit else "stop"
    metrics = LineMetrics(
        prompt_tokens=len(task.prompt_token_ids),
        output_tokens=len(words),
        device_us=running.device_us,
        total_us=running.device_us,
    )
    return Outcome(task, Completion(" ".join(words), reason), metrics)
