"""What every line of a job says unless it says otherwise: one block, sent once with the job.

The merge is shallow: a field of the line replaces the field of the block, whatever it holds. Only
``messages`` come together, those of the block first, so a shared beginning need not be repeated.
"""

from typing import Any

import msgspec

from runner.domain.errors import InvalidRequest
from runner.domain.sound_json import UnsoundJson, read_json
from runner.domain.truncation import POLICIES

MAX_BYTES = 64_000
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Defaults:
    """The block of one job, ready to be put under its lines. Without a block it changes nothing."""

    def __init__(self, block: bytes | None = None) -> None:
        """``block`` is a JSON object that ``check_defaults`` has passed."""
        self._fields = _fields_decoder.decode(block) if block else {}
        self._messages = bytes(self._fields.get("messages", b"")).strip()[1:-1].strip()

    @property
    def shared_bytes(self) -> int:
        """With how many bytes the messages of each line begin in the same way."""
        return len(self._messages) + 2 if self._messages else 0

    def under(self, body: msgspec.Raw) -> msgspec.Raw:
        """A line's body with the block under it; a body that is no object stays as it is."""
        if not self._fields:
            return body
        try:
            own = _fields_decoder.decode(body)
        except msgspec.DecodeError:
            return body
        merged = {**self._fields, **own}
        if self._messages and "messages" in own:
            merged["messages"] = self._joined(own["messages"])
        return msgspec.Raw(msgspec.json.encode(merged))

    def _joined(self, messages: msgspec.Raw) -> msgspec.Raw:
        written = bytes(messages).strip()
        if not written.startswith(b"["):
            return messages  # its own fault will be told
        inner = written[1:-1].strip()
        return msgspec.Raw(b"[%b%b%b]" % (self._messages, b"," if inner else b"", inner))


NO_DEFAULTS = Defaults()


def check_defaults(block: bytes | None) -> None:
    """Refuse at create what would fail every line.

    Raises:
        InvalidRequest: the block is too large, unsound, or a field of it can never be right.
    """
    if block is None:
        return
    if len(block) > MAX_BYTES:
        raise _fault(f"defaults has more than {MAX_BYTES:,} bytes.")
    try:
        fields = read_json(block)
    except UnsoundJson as error:
        raise _fault(f"defaults {error}.") from None
    if not isinstance(fields, dict):
        raise _fault("defaults must be a JSON object.")
    _check_kind(fields, "model", str, "a string")
    _check_kind(fields, "messages", list, "a list")
    policy = fields.get("truncate_prompt")
    if policy is not None and policy not in POLICIES:
        raise _fault(
            f"defaults.truncate_prompt must be one of {', '.join(POLICIES)}.", "truncate_prompt"
        )
    if fields.get("stream"):
        raise _fault("A batch cannot stream; remove defaults.stream.", "stream")


def _check_kind(fields: dict[str, Any], name: str, kind: type, word: str) -> None:
    if name in fields and not isinstance(fields[name], kind):
        raise _fault(f"defaults.{name} must be {word}.", name)


def _fault(message: str, name: str | None = None) -> InvalidRequest:
    param = "defaults" if name is None else f"defaults.{name}"
    return InvalidRequest(message, code="invalid_defaults", param=param)
