"""How models write tool calls: three formats, each read from text and written as a grammar.

A model calls in the format that its chat template taught it, so the template's own text tells which
it is. Grammars are in llguidance's dialect of Lark, with the schemas of arguments as ``schema_0``,
``schema_1``, ... by the place of the tool.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from runner.inference.backend import ToolCall
from runner.inference.tools import ToolUse

Marker = Callable[[str], str]
"""Writes a marker for a grammar: as the special token that it is, or as a text."""
SPECIAL = "<["
"""How a special token's name begins in a grammar."""
_TOOL_CALLS = "[TOOL_CALLS]"
_TEXT = "TEXT: /(.|\\n)*/"
_json_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, taken apart: what is said beside the calls, and the calls."""

    text: str
    calls: tuple[ToolCall, ...] = ()


class ToolFormat(Protocol):
    """One way of writing calls."""

    wants_short_ids: bool  # templates that refuse ids of calls other than of nine characters

    def read(self, text: str, names: Collection[str]) -> Said:
        """Take an answer apart. What is no sound call of one of ``names`` stays text."""

    def rules(self, use: ToolUse, marker: Marker) -> str:
        """The grammar of an answer that keeps what ``use`` asks for."""


def find_tool_format(template: str) -> ToolFormat | None:
    """The format that a chat template teaches; None if it has no tools or we cannot read it."""
    if "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template:
        return Mistral(has_names_first="[ARGS]" in template)
    if "<tool_call>" in template:
        # The same marker around XML (Qwen3-Coder, GLM) is another format.
        is_xml = "<function=" in template or "<arg_key>" in template
        return None if is_xml else Hermes()
    if "<|python_tag|>" in template or ("ipython" in template and "parameters" in template):
        return Llama3()
    return None


class Hermes:
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, of Hermes and Qwen."""

    wants_short_ids = False
    _OPEN, _CLOSE = "<tool_call>", "</tool_call>"

    def read(self, text: str, names: Collection[str]) -> Said:
        """Calls may stand anywhere; the last closing marker may be missing."""
        calls: list[ToolCall] = []
        rest: list[str] = []
        done = 0
        while (opened := text.find(self._OPEN, done)) >= 0:
            rest.append(text[done:opened])
            found = _call_at(text, opened + len(self._OPEN), "arguments")
            if found is None or found[0].name not in names:
                done = opened + len(self._OPEN)
                rest.append(self._OPEN)
                continue
            calls.append(found[0])
            done = _skip(text, found[1])
            if text.startswith(self._CLOSE, done):
                done += len(self._CLOSE)
        rest.append(text[done:])
        return _said(text, "".join(rest), calls)

    def rules(self, use: ToolUse, marker: Marker) -> str:
        """A call per pair of markers, one to a line."""
        opened, closed = marker(self._OPEN), marker(self._CLOSE)
        one = f'"\\n" call "\\n" {closed}'
        again = f' ("\\n" {opened} {one})*' if use.is_parallel else ""
        return _joined(_start(use, opened, one + again), _objects(use, "arguments"))


class Llama3:
    """``{"name": …, "parameters": {…}}`` and nothing else, of Llama 3.1 to 3.3."""

    wants_short_ids = False
    _TAG = "<|python_tag|>"

    def read(self, text: str, names: Collection[str]) -> Said:
        """The whole answer is calls, with semicolons between them, or it is text."""
        calls: list[ToolCall] = []
        done = _skip(text, 0)
        if text.startswith(self._TAG, done):
            done += len(self._TAG)
        while done < len(text):
            found = _call_at(text, done, "parameters")
            if found is None or found[0].name not in names:
                return Said(text)
            calls.append(found[0])
            done = _skip(text, found[1])
            if text.startswith(";", done):
                done = _skip(text, done + 1)
            elif done < len(text):
                return Said(text)
        return _said(text, "", calls)

    def rules(self, use: ToolUse, marker: Marker) -> str:
        """One call: these models were taught no more. Free text may not look like one."""
        start = "start: call" if use.must_call else "start: call | PLAIN\nPLAIN: /([^{](.|\\n)*)?/"
        return _joined(start, _objects(use, "parameters"))


@dataclass(frozen=True, slots=True)
class Mistral:
    """``[TOOL_CALLS] [{"name": …, "arguments": {…}}]``; later ``[TOOL_CALLS]name[ARGS]{…}``.

    Attributes:
        has_names_first: the later way.
    """

    has_names_first: bool
    wants_short_ids = True

    def read(self, text: str, names: Collection[str]) -> Said:
        """Either way of writing, after whatever text."""
        before, marker, after = text.partition(_TOOL_CALLS)
        if not marker:
            return Said(text)
        calls = _named_calls(after) if self.has_names_first else _listed_calls(after)
        if calls is None or any(call.name not in names for call in calls):
            return Said(text)
        return _said(text, before, calls)

    def rules(self, use: ToolUse, marker: Marker) -> str:
        """The marker, and the calls behind it."""
        opened = marker(_TOOL_CALLS)
        if not self.has_names_first:
            more = ' (", " call)*' if use.is_parallel else ""
            return _joined(
                _start(use, opened, f'" "? "[" call{more} "]"'), _objects(use, "arguments")
            )
        again = f" ({opened} call)*" if use.is_parallel else ""
        args = marker("[ARGS]")
        calls = [f"{json.dumps(use.tools[i].name)} {args} schema_{i}" for i in _callable(use)]
        return _joined(_start(use, opened, "call" + again), "call: " + " | ".join(calls))


class _Written(msgspec.Struct):
    """A call as models write it; whatever else it holds is left out."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


_written_decoder = msgspec.json.Decoder(_Written)
_NAMED = re.compile(r"\s*([a-zA-Z0-9_-]{1,64})(?:\[CALL_ID\][^\[]*)?\[ARGS\]")


def _value_at(text: str, place: int) -> tuple[str, int] | None:
    """The JSON value that begins at a place or after space, as written, and where it ends."""
    start = _skip(text, place)
    try:
        _, end = _json_decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return text[start:end], end


def _call_at(text: str, place: int, field: str) -> tuple[ToolCall, int] | None:
    found = _value_at(text, place)
    call = None if found is None else _call(found[0], field)
    return None if found is None or call is None else (call, found[1])


def _call(value: str, field: str) -> ToolCall | None:
    """A call out of its JSON, with its arguments as the model wrote them."""
    try:
        written = _written_decoder.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None
    arguments = bytes(written.arguments if field == "arguments" else written.parameters).decode()
    return ToolCall(written.name, arguments) if arguments.startswith("{") else None


def _listed_calls(text: str) -> list[ToolCall] | None:
    found = _value_at(text, 0)
    if found is None or text[found[1] :].strip():
        return None
    try:
        items = msgspec.json.decode(found[0], type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return None
    calls = [_call(bytes(item).decode(), "arguments") for item in items]
    known = [call for call in calls if call is not None]
    return known if len(known) == len(calls) else None


def _named_calls(text: str) -> list[ToolCall] | None:
    calls = []
    for part in text.split(_TOOL_CALLS):
        head = _NAMED.match(part)
        found = None if head is None else _value_at(part, head.end())
        if head is None or found is None or part[found[1] :].strip():
            return None
        call = _call(f'{{"name":"{head.group(1)}","arguments":{found[0]}}}', "arguments")
        if call is None:
            return None
        calls.append(call)
    return calls


def _said(whole: str, rest: str, calls: Sequence[ToolCall]) -> Said:
    return Said(rest.strip(), tuple(calls)) if calls else Said(whole)


def _skip(text: str, place: int) -> int:
    """The first place that is no space."""
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _callable(use: ToolUse) -> Sequence[int]:
    """The places of the tools that may be called."""
    return range(len(use.tools)) if use.only is None else (use.only,)


def _objects(use: ToolUse, field: str) -> str:
    """The rule ``call``: a JSON object with a name and, under ``field``, its arguments."""
    calls = [
        f"{json.dumps(_head(use.tools[i].name, field))} schema_{i} " + '"}"' for i in _callable(use)
    ]
    return "call: " + " | ".join(calls)


def _head(name: str, field: str) -> str:
    return f'{{"name": {json.dumps(name)}, "{field}": '


def _start(use: ToolUse, opened: str, tail: str) -> str:
    """The rule ``start``: calls behind a marker, and where they are free to be left out, text."""
    if use.must_call:
        return f"start: {opened} {tail}"
    if opened.startswith(SPECIAL):
        return f"start: TEXT | TEXT {opened} {tail}\n{_TEXT}"
    return f"start: TEXT | head {tail}\nhead[lazy]: TEXT {opened}\n{_TEXT}"


def _joined(*rules: str) -> str:
    return "\n".join(rules)
