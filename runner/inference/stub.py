"""A backend without a model: deterministic, thousands of lines per second, and able to misbehave.

It answers each choice with words drawn from a hash of its prompt and its place, or embeds a prompt
by a vector drawn the same way, so a test of everything around the engine can compare files byte for
byte. Its path says how it behaves, e.g. ``stub:?rows=64&step_ms=20&crash_on=POISON``.
"""

import hashlib
import math
import os
import re
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from runner.domain.lanes import Lane
from runner.domain.leases import ItemInput, Lease, LineMetrics
from runner.inference.backend import (
    CannotProfile,
    Completion,
    Likelihood,
    LineRefusal,
    Outcome,
    Recording,
    Task,
    TokenLikelihood,
)
from runner.inference.bodies import BadBody
from runner.inference.fan_out import Choice, OpenLines
from runner.inference.prompts import tokenise
from runner.inference.requests import LineRequest, Prompt, parse_request

_WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron")
_CRASH_STATUS = 86
_DIMENSIONS = 16


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
        self.gpu_uuid: str | None = None
        self._step_seconds = step_ms / 1000
        self._crash_on = crash_on
        self._lines = OpenLines()
        self._waiting: dict[str, Choice] = {}
        self._running: dict[str, _Running] = {}
        self._steps = 0
        self._left = 0  # when the last step ended, if it left work

    @classmethod
    def from_path(cls, path: str) -> "StubBackend":
        """The stub that a model's path describes; it takes ``load_ms`` as a model takes to load."""
        options = {name: values[-1] for name, values in parse_qs(urlsplit(path).query).items()}
        time.sleep(float(options.get("load_ms", 0)) / 1000)
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
            _check_dimensions(request)
            line = tokenise(request, _Words(), context=None)
        except BadBody as error:
            raise LineRefusal(400, error.code, error.message, error.param) from None
        _refuse_forms(request)
        return Task.of(lease, item, line)

    def submit(self, task: Task) -> None:
        """Queue a task."""
        for choice in self._lines.add(task):
            self._waiting[choice.key] = choice

    def step(self) -> list[Outcome]:
        """Give every running choice its next word."""
        started = self._left or time.perf_counter_ns()
        while self._waiting and len(self._running) < self.rows:
            key = max(self._waiting, key=lambda key: self._waiting[key].task.lease.priority)
            self._start(self._waiting.pop(key))
        if self._step_seconds:
            time.sleep(self._step_seconds)
        self._steps += 1
        ended = []
        for running in self._running.values():
            running.steps_left -= 1
            if running.steps_left <= 0:
                ended.append(running)
        now = time.perf_counter_ns()
        self._share_time((now - started) // 1000)
        for running in ended:
            key = running.choice.key
            del self._running[key]
            answer = _answer(running.choice)
            self._lines.end(key, answer, _metrics(running))
        self._left = now if self.unfinished else 0
        return self._lines.take_ended()

    def abort(self, keys: Iterable[str]) -> int:
        """Drop tasks."""
        keys = list(keys)
        wasted = 0
        for key in self._lines.running(keys):
            self._waiting.pop(key, None)
            running = self._running.pop(key, None)
            wasted += running.device_us if running else 0
        if not self.unfinished:
            self._left = 0  # what follows is idle time
        return wasted + self._lines.drop(keys)

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not ended."""
        return len(self._waiting) + len(self._running)

    def expect_more(self, more: bool) -> None:
        """No matter here: tasks run by priority, then in the order they came."""

    def record(self) -> Recording:
        """Refused: there is no model whose operations could be shown."""
        raise CannotProfile(
            "The worker runs the stub, which has no operations to show; profile one with a model."
        )

    def stats(self) -> Mapping[str, float]:
        """What runs now."""
        return {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "steps": self._steps,
        }

    def close(self) -> None:
        """There is nothing to free."""

    def _start(self, choice: Choice) -> None:
        if self._crash_on and self._crash_on in _prompt_of(choice):
            os._exit(_CRASH_STATUS)
        self._running[choice.key] = _Running(choice, max(1, _num_output_tokens(choice)))

    def _share_time(self, step_us: int) -> None:
        """Split a step's wall time evenly; the remainder goes to the first choice."""
        if not self._running:
            return
        share, rest = divmod(step_us, len(self._running))
        for running in self._running.values():
            running.device_us += share + rest
            rest = 0


class StubPrompts:
    """What the stub makes of prompts, for counting them; nothing is too long for it."""

    block_size = 32
    context: int | None = None
    num_token_ids: int | None = None

    def tokens(self, request: LineRequest) -> "_Words":
        """Words, of a line that the stub does not refuse."""
        _check_dimensions(request)
        _refuse_forms(request)
        return _Words()

    def encode_all(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Each text's words."""
        return [_Words().encode(text, add_special_tokens) for text in texts]


class _Words:
    """Prompts as tokens: every word is one, and its id is its place."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(range(len(text.split())))

    def token_starts(self, text: str) -> list[int]:
        return [match.start() for match in re.finditer(r"\S+", text)]

    def chat_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        return _chat_text(messages)

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.encode(_chat_text(messages), add_special_tokens=False)


def _chat_text(messages: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(message["content"] or "" for message in messages)


def _refuse_forms(request: LineRequest) -> None:
    """Words out of a hash have no form, and say no calls."""
    param = request.format.param if request.format is not None else "tools"
    if request.format is not None or request.tools is not None:
        message = f"The stub keeps to no form; {param} needs a real model."
        raise LineRefusal(400, "unsupported_value", message, param)


def _prompt_text(prompt: Prompt) -> str:
    if prompt.messages is not None:
        return _chat_text(prompt.messages)
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


def _check_dimensions(request: LineRequest) -> None:
    wanted = request.embedding and request.embedding.dimensions
    if wanted and wanted > _DIMENSIONS:
        raise BadBody(f"dimensions must be from 1 to the model's {_DIMENSIONS}.", "dimensions")


def _num_output_tokens(choice: Choice) -> int:
    return 0 if choice.task.request.embedding is not None else len(_words(choice))


def _answer(choice: Choice) -> Completion:
    options = choice.task.request.embedding
    if options is None:
        return _completion(choice)
    return Completion("", "stop", vector=_vector(_prompt_of(choice), options.dimensions))


def _vector(text: str, dimensions: int | None) -> bytes:
    """A vector of length 1 drawn from a hash of the text; little-endian float32."""
    digest = hashlib.blake2b(text.encode(), digest_size=_DIMENSIONS).digest()
    numbers = [byte - 127.5 for byte in digest[:dimensions]]
    length = math.hypot(*numbers)
    return struct.pack(f"<{len(numbers)}f", *(number / length for number in numbers))


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
        output_tokens=_num_output_tokens(running.choice),
        device_us=running.device_us,
        total_us=running.device_us,
    )
