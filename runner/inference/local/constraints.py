"""What a line asks of the form of its answers, as grammars and prompts of one model."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidGrammar
from engine.grammar import Grammar, Vocabulary
from engine.grammar_compiler import GrammarCompiler, GrammarSource
from engine.tokenizer import Tokenizer
from runner.inference.bodies import BadBody
from runner.inference.requests import LineRequest
from runner.inference.tool_formats import SPECIAL, Said, find_tool_format
from runner.inference.tools import ToolUse

_ANY_OBJECT = '{"type":"object"}'
_SHORT_ID = 9  # letters and digits that Mistral's templates want of a call's id
_NOUNS = {"json_schema": "The schema", "regex": "The pattern", "choice": "The choice"}
_CODES = {"json_schema": "invalid_json_schema"}


class Constraints:
    """The grammars and the tool format of one model. Belongs to one thread, but for ``read``."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tool_format = find_tool_format(tokenizer.tool_template_text)
        self._compiler = GrammarCompiler(
            lambda: Vocabulary(
                tokenizer.to_json(), tokenizer.num_token_ids, tokenizer.eos_token_ids
            )
        )

    def grammar(self, request: LineRequest) -> Grammar | None:
        """The grammar that all answers of a line must follow, if any.

        Raises:
            BadBody: it cannot be enforced; the param says which field wants it.
        """
        if request.tools is not None and request.tools.needs_grammar:
            return self._grammar_of(request.tools)
        if request.format is None:
            return None
        kind, param = request.format.kind, request.format.param
        code = _CODES.get(kind, "invalid_value")
        return self._compile(GrammarSource(kind, request.format.text), param, code)

    def prompt_tokens(self, tools: ToolUse | None) -> "LinePrompts":
        """The model's way from a line's prompts to token ids."""
        return LinePrompts(self, self._tokenizer, tools)

    def write(self, messages: Sequence[Mapping[str, Any]], tools: ToolUse | None) -> str:
        """A chat in its frame, with its tools shown to the model.

        Raises:
            BadBody: the model's template has no tools.
        """
        if tools is not None and self._tool_format is None:
            raise BadBody(
                "The model's chat template has no tools, or calls them in an unknown format.",
                "tools",
                "unsupported_value",
            )
        if "tool" not in self._tokenizer.tool_template_text:
            for number, message in enumerate(messages):
                if message["role"] == "tool" or "tool_calls" in message:
                    raise BadBody(
                        "The model's chat template has no tools.",
                        f"messages[{number}]",
                        "unsupported_value",
                    )
        if self._tool_format is not None and self._tool_format.wants_short_ids:
            messages = tuple(map(_with_short_ids, messages))
        written = None if tools is None else [tool.written for tool in tools.tools]
        return self._tokenizer.chat_text(messages, written)

    def read(self, text: str, tools: ToolUse | None) -> Said:
        """An answer's text with its calls taken out, where the line has tools."""
        if tools is None or self._tool_format is None:
            return Said(text)
        return self._tool_format.read(text, tools.names)

    def _grammar_of(self, use: ToolUse) -> Grammar:
        assert self._tool_format is not None  # the prompt was rendered
        schemas = []
        for number, tool in enumerate(use.tools):
            is_exact = tool.is_strict or (use.must_call and use.only in (None, number))
            schemas.append(tool.parameters if is_exact else _ANY_OBJECT)
            # Each by itself first, so that a fault is told with its place.
            where = f"tools[{number}].function.parameters"
            self._compile(GrammarSource("json_schema", schemas[-1]), where, "invalid_json_schema")
        rules = self._tool_format.rules(use, self._marker)
        return self._compile(GrammarSource("lark", rules, tuple(schemas)), "tools", "invalid_value")

    def _marker(self, text: str) -> str:
        token_id = self._tokenizer.special_token_id(text)
        return f'"{text}"' if token_id is None else f"{SPECIAL}{token_id}]>"

    def _compile(self, source: GrammarSource, param: str, code: str) -> Grammar:
        try:
            return self._compiler.compile(source)
        except InvalidGrammar as error:
            noun = _NOUNS.get(source.kind, "The set of tools")
            message = f"{noun} cannot be enforced: {error.message}."
            raise BadBody(message, param, code) from None


@dataclass(frozen=True, slots=True)
class LinePrompts:
    """The prompts of one line as token ids; its chats are shown with its tools."""

    constraints: Constraints
    tokenizer: Tokenizer
    tools: ToolUse | None

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens)

    def token_starts(self, text: str) -> Sequence[int]:
        return self.tokenizer.token_starts(text)

    def chat_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return self.constraints.write(messages, self.tools)

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.encode(self.chat_text(messages), add_special_tokens=False)


def _with_short_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose ids of calls have the form that Mistral's templates insist on."""
    changed = dict(message)
    if "tool_calls" in message:
        changed["tool_calls"] = [
            {**call, "id": _short_id(call["id"])} for call in message["tool_calls"]
        ]
    if "tool_call_id" in message:
        changed["tool_call_id"] = _short_id(message["tool_call_id"])
    return changed


def _short_id(call_id: str) -> str:
    if len(call_id) == _SHORT_ID and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.blake2b(call_id.encode(), digest_size=8).hexdigest()[:_SHORT_ID]
