"""A backend without a model: deterministic, thousands of lines per second, and able to misbehave.

It answers each choice with words drawn from a hash of its prompt and its place, so a test of
everything around the engine can compare files byte for byte. Its path says how it behaves, e.g.
``stub:?rows=64&step_ms=20&crash_on=POISON``.
"""

import hashlib
import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from runner.domain.lanes import Lane
from runner.domain.leases import ItemInput, Lease, LineMetrics
from runner.inference.backend import (
    Completion,
    Likelihood,
    LineRefusal,
    Outcome,
    Task,
    TokenLikelihood,
)
from runner.inference.bodies import BadBody
from runner.inference.fan_out import Choice, OpenLines
from runner.inference.requests import Prompt, parse_request

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron")
_CRASH_STATUS = 86


@dataclass(slots=True)
class _Running:
    choice: Choice
    steps_left: int
    device_us: int = 0


class StubBackend:
    """Runs ``rows`` choices at once, one word per choice and step."""

    def __init__(
        self, rows: int = 1024, step_ms: float = 0.0, crash_on: str = "", slow_because: str = ""
    ) -> None:
        self.rows = rows
        self.description = f"stub: {rows} rows, {step_ms} ms per step"
        self.lane = Lane("stub", slow_because)
        self._step_seconds = step_ms / 1000
        self._crash_on = crash_on
        self._lines = OpenLines()
        self._waiting: dict[str, Choice] = {}
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
            slow_because=options.get("slow_because", ""),
        )

    def prepare(self, lease: Lease, item: ItemInput) -> Task:
        """Parse a line; every word of the prompt counts as one token."""
        try:
            request = parse_request(item.data, lease, item.idx)
        except BadBody as error:
            raise LineRefusal(400, error.code, error.message, error.param) from None
        key = f"{lease.key.job_id}/{item.idx}/{lease.key.epoch}"
        words = [len(_prompt_text(prompt).split()) for prompt in request.prompts]
        prompts = tuple(tuple(range(count)) for count in words)
        return Task(key, lease, item.idx, item.custom_id, request, prompts)

    def submit(self, task: Task) -> None:
        """Queue a task."""
        for choice in self._lines.add(task):
            self._waiting[choice.key] = choice

    def step(self) -> list[Outcome]:
        """Give every running choice its next word."""
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
            key = running.choice.key
            del self._running[key]
            self._lines.end(key, _completion(running.choice), _metrics(running))
        return self._lines.take_ended()

    def abort(self, keys: Iterable[str]) -> int:
        """Drop tasks."""
        keys = list(keys)
        wasted = 0
        for key in self._lines.running(keys):
            self._waiting.pop(key, None)
            running = self._running.pop(key, None)
            wasted += running.device_us if running else 0
        return wasted + self._lines.drop(keys)

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not ended."""
        return len(self._waiting) + len(self._running)

    def stats(self) -> Mapping[str, float]:
        """What runs now."""
        return {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "steps": self._steps,
        }

    def _start(self, choice: Choice) -> None:
        if self._crash_on and self._crash_on in _prompt_of(choice):
            os._exit(_CRASH_STATUS)
        self._running[choice.key] = _Running(choice, len(_words(choice)))

    def _share_time(self, step_us: int) -> None:
        """Split a step's wall time evenly; the remainder goes to the first choice."""
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


def _prompt_of(choice: Choice) -> str:
    return _prompt_text(choice.task.request.prompts[choice.prompt])


def _words(choice: Choice) -> list[str]:
    salt = f"\0{choice.index}" if choice.index else ""
    digest = hashlib.blake2b((_prompt_of(choice) + salt).encode(), digest_size=16).digest()
    asked = choice.task.request.sampling
    count = max(1 + digest[0] % len(digest), asked.min_tokens)
    count = min(count, asked.max_tokens or count)
    return [_WORDS[digest[place % len(digest)] % len(_WORDS)] for place in range(count)]


def _completion(choice: Choice) -> Completion:
    words = _words(choice)
    asked = choice.task.request.sampling
    text = " ".join(words)
    is_cut = asked.max_tokens is not None and len(words) >= asked.max_tokens
    return Completion(
        text=_prompt_of(choice) + text if choice.task.request.echo else text,
        finish_reason="length" if is_cut else "stop",
        likelihoods=None if asked.logprobs is None else _likelihoods(words, asked.logprobs),
    )


def _likelihoods(words: list[str], count: int) -> tuple[TokenLikelihood, ...]:
    """Each word as the likeliest, with the others of the list after it, each half as likely."""
    told = []
    for place, word in enumerate(words):
        others = [other for other in _WORDS if other != word]
        space = " " if place else ""
        ranked = [
            Likelihood((space + name).encode(), -(rank + 1) * math.log(2))
            for rank, name in enumerate([word, *others])
        ]
        told.append(TokenLikelihood(ranked[0], tuple(ranked[:count])))
    return tuple(told)


def _metrics(running: _Running) -> LineMetrics:
    return LineMetrics(
        prompt_tokens=len(running.choice.prompt_token_ids),
        output_tokens=len(_words(running.choice)),
        device_us=running.device_us,
        total_us=running.device_us,
    )
