"""How large lines are at a glance: bytes of prompts and tokens asked for, without a tokenizer."""

from dataclasses import dataclass
from typing import Any

import msgspec

from runner.domain.estimate import Volume

FRAME_TOKENS = 64
"""Room for what a chat template may put around a prompt, a system message of its own included."""
BYTES_PER_TOKEN = 4.0
"""Of prompts as written in JSON, where no earlier job has shown another figure."""
_COMPLETIONS_MAX_TOKENS = 16  # the contract's default
_LARGEST = 1 << 24  # no context holds more tokens, and sums of it fit


@dataclass(frozen=True, slots=True)
class Outline:
    """One line's size. ``output`` is the most tokens of all its choices; None without a bound."""

    prompt_bytes: int
    output: int | None
    choices: int = 1


class Asked(msgspec.Struct):
    """The fields of a body that bound its output; of any type, for it is not this that checks."""

    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    n: Any = None
    tools: msgspec.Raw = msgspec.Raw(b"")


def outline(endpoint: str, prompt: bytes, more_bytes: int, asked: Asked) -> Outline:
    """The size of a line whose prompt is written so, with ``more_bytes`` that it shares."""
    size = len(prompt) + more_bytes + len(bytes(asked.tools))
    if endpoint.endswith("/embeddings"):
        return Outline(size, 0)
    limit = _count(asked.max_completion_tokens, asked.max_output_tokens, asked.max_tokens)
    choices = _count(asked.n) or 1
    if endpoint.endswith("/completions") and not endpoint.endswith("/chat/completions"):
        choices *= _prompts(prompt)
        limit = _COMPLETIONS_MAX_TOKENS if limit is None else limit
    return Outline(size, None if limit is None else limit * choices, choices)


@dataclass(slots=True)
class Sketch:
    """The sizes of many lines, added up."""

    lines: int = 0
    prompt_bytes: int = 0
    bounded_lines: int = 0
    bounded_output: int = 0
    unbounded_lines: int = 0
    unbounded_choices: int = 0

    def add(self, line: Outline) -> None:
        """Note the next line."""
        self.lines += 1
        self.prompt_bytes += line.prompt_bytes
        if line.output is None:
            self.unbounded_lines += 1
            self.unbounded_choices += line.choices
        else:
            self.bounded_lines += 1
            self.bounded_output += line.output

    def without(self, part: "Sketch") -> "Sketch":
        """What is left of these lines without a part of them."""
        names = Sketch.__slots__
        return Sketch(**{name: getattr(self, name) - getattr(part, name) for name in names})

    def part(self, lines: int) -> "Sketch":
        """What some of these lines amount to, by their number, rounded up."""
        names = Sketch.__slots__
        whole = max(1, self.lines)
        return Sketch(**{name: -(-getattr(self, name) * lines // whole) for name in names})

    def scaled(self, part: int, whole: int) -> "Sketch":
        """The sketch of a whole of which ``part`` was sketched, rounded up."""
        if part >= whole or part == 0:
            return self
        names = Sketch.__slots__
        return Sketch(**{name: -(-getattr(self, name) * whole // part) for name in names})

    def volume(self, context: int, bytes_per_token: float | None = None) -> Volume:
        """What these lines amount to for a model that holds ``context`` tokens.

        A token of a text has at least one byte, so but for its frame no prompt has more tokens
        than bytes.
        """
        most = self.prompt_bytes + self.lines * FRAME_TOKENS
        return Volume(
            lines=self.lines,
            input_tokens=min(most, round(self.prompt_bytes / (bytes_per_token or BYTES_PER_TOKEN))),
            input_most=most,
            bounded_lines=self.bounded_lines,
            bounded_output=self.bounded_output,
            unbounded_lines=self.unbounded_lines,
            unbounded_output=self.unbounded_choices * context,
        )


def _count(*values: object) -> int | None:
    """The first of some fields that holds a whole number above 0."""
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return min(value, _LARGEST)
    return None


def _prompts(prompt: bytes) -> int:
    """How many prompts a field holds: a list of texts, or of lists of token ids, holds several."""
    if not prompt.startswith(b"["):
        return 1
    items = msgspec.json.decode(prompt, type=list[msgspec.Raw])
    several = items and not bytes(items[0])[:1].isdigit()
    return len(items) if several else 1
