"""The bytes of single tokens, for those who look at tokens one by one.

A token may hold part of a character, so its text alone can't be shown; its bytes can.
"""

import re

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_MARKED_SPACE = "\u2581"


class TokenBytes:
    """From token ids to bytes, by the way the tokenizer's own decoder writes bytes."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        decoder = backend.decoder
        state = b"" if decoder is None else decoder.__getstate__()
        self._byte_of = _byte_letters() if b'"ByteLevel"' in state else None
        self._special = backend.get_added_tokens_decoder().keys()
        self._known: dict[int, bytes] = {}

    def of(self, token_id: int) -> bytes:
        """The bytes that the token adds to a text; a special token is told by its name."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._read(token_id)
        return known

    def _read(self, token_id: int) -> bytes:
        name = self._backend.id_to_token(token_id)
        if name is None:
            return b""
        if token_id in self._special:
            return name.encode()
        if self._byte_of is not None:
            letters = [self._byte_of.get(letter) for letter in name]
            values = [value for value in letters if value is not None]
            return bytes(values) if len(values) == len(letters) else name.encode()
        byte = _BYTE_TOKEN.fullmatch(name)
        if byte is not None:
            return bytes.fromhex(byte.group(1))
        return name.replace(_MARKED_SPACE, " ").encode()


def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable Latin-1 as itself, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}
