"""Text to token ids and back, and chat templates, without torch and without remote code.

Reads tokenizer.json by the `tokenizers` library and renders the folder's chat template in a
sandbox. One instance per thread.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.meta
import tokenizers
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import InvalidParams, UnsupportedModel
from engine.token_bytes import TokenBytes

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class Tokenizer:
    """The tokenizer of one model folder.

    Attributes:
        eos_token_ids: every token that ends an output.
        tool_template_text: the chat template that shows tools; empty if none would.

    Raises:
        UnsupportedModel: the folder has no readable tokenizer.json.
    """

    def __init__(self, folder: Path) -> None:
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise UnsupportedModel(
                f"{path} is missing; save the tokenizer in its fast form (tokenizer.json)."
            )
        try:
            self._backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise UnsupportedModel(f"{path} can't be read: {error}") from error
        # A saved truncation or padding would silently change prompts.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._token_bytes = TokenBytes(self._backend)
        settings = _read_object(Path(folder) / "tokenizer_config.json")
        self._special_tokens = {
            name: _token_text(settings[name]) for name in SPECIAL_TOKENS if settings.get(name)
        }
        self.eos_token_ids = self._find_eos(Path(folder))
        source = _template_source(Path(folder), settings, "default")
        tool_source = _template_source(Path(folder), settings, "tool_use") or source
        self._template = _compile_template(source)
        is_same = tool_source == source
        self._tool_template = self._template if is_same else _compile_template(tool_source)
        self.tool_template_text = tool_source if tool_source and _takes_tools(tool_source) else ""

    @property
    def num_token_ids(self) -> int:
        """One more than the largest token id."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; special tokens are those the tokenizer puts around any text."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_all(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Token ids of each text, as `encode` has them, by several threads at once."""
        encodings = self._backend.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return [encoding.ids for encoding in encodings]

    def token_starts(self, text: str) -> list[int]:
        """For each token of `text` alone, the index of the character with which it begins."""
        offsets = self._backend.encode(text, add_special_tokens=False).offsets
        return [start for start, _ in offsets]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        return self._backend.decode(ids, skip_special_tokens=True)

    def decode_all(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens by their names."""
        return self._backend.decode(ids, skip_special_tokens=False)

    def to_json(self) -> str:
        """All of it as the text of a tokenizer.json."""
        return self._backend.to_str()

    def special_token_id(self, text: str) -> int | None:
        """The id of a special token, or None if the text isn't one."""
        token_id = self._backend.token_to_id(text)
        if token_id is None:
            return None
        token = self._backend.get_added_tokens_decoder().get(token_id)
        return token_id if token is not None and token.special else None

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token adds to a text, be they part of a character or more than one."""
        return self._token_bytes.of(token_id)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Token ids of a conversation, as `chat_text` writes it.

        Raises:
            InvalidParams: there is no template, or it refuses the messages.
        """
        return self.encode(self.chat_text(messages, tools), add_special_tokens=False)

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """A conversation in its frame, up to where the assistant's answer begins.

        `tools` are functions that the template shows to the model. The template writes its own
        special tokens, so none are added to its text.

        Raises:
            InvalidParams: there is no template, or it refuses the messages.
        """
        template = self._tool_template if tools else self._template
        if template is None:
            raise InvalidParams(
                "The model has no chat template; send a plain prompt instead.", "messages"
            )
        try:
            return template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        # A template is foreign code: what it does wrong is always this one request's error.
        except Exception as error:
            raise InvalidParams(
                f"The model's chat template refuses these messages: {error}", "messages"
            ) from error

    def _find_eos(self, folder: Path) -> frozenset[int]:
        """Every id that ends an output, by generation_config, config and tokenizer."""
        found: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            value = _read_object(folder / name).get("eos_token_id")
            found.update(value if isinstance(value, list) else [value] if value is not None else [])
        eos_token = self._special_tokens.get("eos_token")
        if eos_token is not None:
            token_id = self._backend.token_to_id(eos_token)
            found.update([] if token_id is None else [token_id])
        return frozenset(found)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Any) -> str:  # noqa: ANN401 - jinja passes its own macro
        return str(caller())


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file that may be missing."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not valid JSON: {error}.") from error
    return value if isinstance(value, dict) else {}


def _token_text(value: object) -> str:
    """A special token is written as a string or as an object with its content."""
    return str(value["content"]) if isinstance(value, dict) else str(value)


def _template_source(folder: Path, settings: dict[str, Any], name: str) -> str | None:
    """A chat template by its name: a file of its own, else the setting or an entry of its list."""
    is_default = name == "default"
    file = "chat_template" if is_default else f"additional_chat_templates/{name}"
    path = folder / f"{file}.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = settings.get("chat_template")
    if isinstance(source, list):
        by_name = {entry.get("name"): entry.get("template") for entry in source}
        source = by_name.get(name)
    elif not is_default:
        return None
    return source if isinstance(source, str) else None


def _compile_template(source: str | None) -> jinja2.Template | None:
    if source is None:
        return None
    try:
        return _environment().from_string(source)
    except jinja2.TemplateError as error:
        raise UnsupportedModel(f"The model's chat template is not valid: {error}") from error


def _takes_tools(source: str) -> bool:
    """Whether a template that compiles reads `tools`; others would leave them out in silence."""
    return "tools" in jinja2.meta.find_undeclared_variables(_environment().parse(source))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: object, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """Jinja's own filter escapes HTML, which templates don't expect."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
