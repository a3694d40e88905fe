"""Text of one request: incremental where stop strings need it, in one go where not.

Knows the tokenizer only as a function from ids to text.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 4
"""Prompt tokens decoded in front of the output, so that a leading space is kept."""
MAX_PENDING_TOKENS = 8
"""A character has at most 4 bytes: after this many tokens the bytes are simply not UTF-8."""


class Detokenizer:
    """Collects output tokens, finds stop strings and renders the final text."""

    def __init__(
        self, decode: Decode, stop: Sequence[str], prompt_token_ids: Sequence[int]
    ) -> None:
        self._decode = decode
        self._stop = stop
        self._ids = _clean_context(decode, prompt_token_ids)
        self._num_context = len(self._ids)
        # Ids before `_read` are in `_text`; decoding starts at `_prefix`, a little before, since
        # what a token looks like may depend on the one in front of it.
        self._prefix = 0
        self._read = self._num_context
        self._text = ""
        self._stopped_at: int | None = None

    def append(self, token_id: int, may_stop: bool = True) -> bool:
        """Add one output token; True when it completes a stop string and may stop."""
        self._ids.append(token_id)
        if not self._stop:
            return False
        searched = len(self._text)
        self._advance()
        if not may_stop:
            return False
        # A match has to end in new text: an older one came when it could not stop the output.
        found = [self._text.find(text, max(0, searched - len(text) + 1)) for text in self._stop]
        matches = [position for position in found if position >= 0]
        if matches:
            self._stopped_at = min(matches)
        return bool(matches)

    def text(self, num_hidden: int = 0) -> str:
        """The whole output without its last `num_hidden` tokens, cut before a stop string.

        Bytes that never became a character are shown as U+FFFD.
        """
        if self._stopped_at is not None:
            return self._text[: self._stopped_at]
        ids = self._ids[: len(self._ids) - num_hidden]
        context = self._decode(ids[: self._num_context])
        text = self._decode(ids)
        if text.startswith(context):
            return text[len(context) :]
        return self._decode(ids[self._num_context :])

    def _advance(self) -> None:
        """Move finished characters of the newest tokens into the text."""
        known = self._decode(self._ids[self._prefix : self._read])
        text = self._decode(self._ids[self._prefix :])
        num_pending = len(self._ids) - self._read
        is_split = text.endswith(REPLACEMENT) and num_pending <= MAX_PENDING_TOKENS
        if len(text) > len(known) and not is_split:
            self._text += text[len(known) :]
            self._prefix = self._read
            self._read = len(self._ids)


def _clean_context(decode: Decode, prompt_token_ids: Sequence[int]) -> list[int]:
    """The prompt's last tokens, or none if they end inside a character.

    The output could complete that character, and the prompt's bytes would leak into its text.
    """
    context = list(prompt_token_ids[-CONTEXT_TOKENS:])
    return [] if decode(context).endswith(REPLACEMENT) else context
