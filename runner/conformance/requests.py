"""The input files of the examination."""

import json
from collections.abc import Iterator
from typing import Final

ENDPOINT: Final = "/v1/chat/completions"


def chat_line(custom_id: str, model: str, text: str, **body: object) -> bytes:
    """One line that asks for a chat completion."""
    asked = {"model": model, "messages": [{"role": "user", "content": text}], **body}
    line = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": asked}
    return json.dumps(line).encode() + b"\n"


def good_lines(model: str, count: int) -> bytes:
    """Lines that every model answers, in a few tokens."""
    return b"".join(
        chat_line(f"good-{n}", model, f"What is {n} plus {n}?", max_tokens=8) for n in range(count)
    )


def refused_lines(model: str, count: int) -> bytes:
    """Lines of a sound form that no server may answer: their temperature is out of range."""
    return b"".join(
        chat_line(f"hot-{n}", model, "Say yes.", max_tokens=8, temperature=3) for n in range(count)
    )


def long_lines(model: str, count: int) -> bytes:
    """More work than a server does in some seconds."""
    return b"".join(
        chat_line(f"long-{n}", model, f"Write a long story of the number {n}.", max_tokens=400)
        for n in range(count)
    )


def bad_lines(model: str) -> bytes:
    """Sound lines, a blank one, and one of each fault in ``BAD_LINES``."""
    good = chat_line("a", model, "Say yes.", max_tokens=8)
    lines = [
        good,
        b"{not json}\n",
        good,
        b"\n",
        chat_line("b", "no-such-model-anywhere", "Say yes."),
        chat_line("c", model, "Say yes.", stream=True),
        json.dumps({"custom_id": "d", "method": "POST", "url": ENDPOINT}).encode() + b"\n",
    ]
    return b"".join(lines)


BAD_LINES = {
    (2, "invalid_json_line"),
    (3, "duplicate_custom_id"),
    (5, "model_not_found"),
    (6, "streaming_unsupported"),
    (7, "missing_required_parameter"),
}
"""Number and code of the faults in ``bad_lines``; the blank line is counted and is no fault."""


def wide_lines(model: str, size: int) -> Iterator[bytes]:
    """At least ``size`` bytes of lines of about 64 KiB, made while they are read."""
    number, told = 0, 0
    while told < size:
        line = chat_line(f"wide-{number}", model, f"{number:08d} " * 7_000)
        yield line
        number, told = number + 1, told + len(line)
