"""An input file as the lines of a job, whatever its form: JSONL is passed on, rows are put in."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from runner.domain.errors import InvalidRequest
from runner.domain.lines import ENDPOINTS, split_lines
from runner.offline.table import Table, is_table, open_table
from runner.offline.template import Template, column_template, read_template

CHAT = ENDPOINTS[0]
_READ_BYTES = 1024**2
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """How the rows of a table become prompts; none of it is for JSONL."""

    template: str | None = None
    prompt_column: str | None = None
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None


class Requests(msgspec.Struct, frozen=True):
    """The lines of a job: their endpoint, the name by which they call the model, their bytes."""

    endpoint: str
    model_name: str
    source: "JsonLines | Rows"

    def lines(self) -> Iterator[bytes]:
        """All lines in order, each with its newline, read anew."""
        return self.source.lines(self.model_name)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """A JSONL file in the form of a batch."""

    path: Path
    max_line_bytes: int

    def head(self) -> tuple[str, str | None]:
        """The endpoint of the first line, and the first model that any line names."""
        endpoint, model = None, None
        for line in self._raw():
            fields = _fields(line)
            if endpoint is None:
                endpoint = _text(fields.get("url"))
            model = _text(_fields(fields.get("body", b"")).get("model"))
            if model is not None:
                break
        return endpoint if endpoint in ENDPOINTS else CHAT, model

    def lines(self, model_name: str) -> Iterator[bytes]:
        """The file's lines; one whose body names no model gets the name. Faulty lines stay as
        they are, for the ingest to name their faults; so do blank ones, for their numbers."""
        number = 0
        for raw in split_lines(_pieces(self.path), self.max_line_bytes):
            yield b"\n" * (raw.number - number - 1)
            number = raw.number
            yield _named(raw.data, model_name) + b"\n"

    def _raw(self) -> Iterator[bytes]:
        for raw in split_lines(_pieces(self.path), self.max_line_bytes):
            yield raw.data


@dataclass(frozen=True, slots=True)
class Rows:
    """A table, with the template that makes a prompt of each row."""

    table: Table
    template: Template
    options: PromptOptions

    def lines(self, model_name: str) -> Iterator[bytes]:
        """One chat line a row, called by its number from 1."""
        for number, row in enumerate(self.table.rows(), start=1):
            line = {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": CHAT,
                "body": self._body(model_name, self.template.fill(row)),
            }
            yield msgspec.json.encode(line) + b"\n"

    def _body(self, model_name: str, prompt: str) -> dict[str, Any]:
        options = self.options
        messages = [{"role": "user", "content": prompt}]
        if options.system is not None:
            messages.insert(0, {"role": "system", "content": options.system})
        body: dict[str, Any] = {"model": model_name, "messages": messages}
        if options.max_tokens is not None:
            body["max_tokens"] = options.max_tokens
        if options.temperature is not None:
            body["temperature"] = options.temperature
        return body


def open_requests(
    path: Path, options: PromptOptions, own_name: str, max_line_bytes: int
) -> Requests:
    """The lines that an input file stands for. ``own_name`` is what the model is called where the
    file does not say.

    Raises:
        InvalidRequest: the options do not fit the file, or the table cannot be read.
    """
    if is_table(path):
        return Requests(CHAT, own_name, _rows_of(path, options))
    if options != PromptOptions():
        raise InvalidRequest(
            "--template, --prompt-column, --system, --max-tokens and --temperature are for CSV and "
            "Parquet; a JSONL line says all that in its body."
        )
    source = JsonLines(path, max_line_bytes)
    endpoint, named = source.head()
    return Requests(endpoint, named or own_name, source)


def _rows_of(path: Path, options: PromptOptions) -> Rows:
    if (options.template is None) == (options.prompt_column is None):
        raise InvalidRequest(
            f"Say how the rows of {path.name} become prompts: --prompt-column NAME or "
            "--template 'Sum up: {text}'."
        )
    table = open_table(path)
    if options.template is not None:
        return Rows(table, read_template(options.template, table.columns), options)
    return Rows(table, column_template(options.prompt_column or "", table.columns), options)


def _named(data: bytes, model_name: str) -> bytes:
    fields = _fields(data)
    body = fields.get("body")
    if body is None or not bytes(body).lstrip().startswith(b"{"):
        return data
    inside = _fields(body)
    if "model" in inside:
        return data
    named = {"model": model_name, **inside}
    return msgspec.json.encode({**fields, "body": named})


def _fields(data: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object; none where the bytes are something else."""
    try:
        return _object.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return {}


def _text(value: msgspec.Raw | None) -> str | None:
    try:
        return None if value is None else msgspec.json.decode(value, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            yield piece
