"""Counting the tokens of lines without running them: no torch, and the very steps of a worker.

A line is read, written and fitted by the functions that prepare it for the engine; only the
tokenizer is called once for many lines, which lets it use several threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runner.domain.counts import Count, LineKind
from runner.domain.leases import ItemInput
from runner.inference.prompts import TokenisedLine, WrittenPrompt, fit, write_prompts
from runner.inference.requests import LineRequest, read_request
from runner.inference.truncation import PromptTokens


class PromptSource(Protocol):
    """A model's way from lines to token ids.

    Attributes:
        block_size: tokens of one block of the cache; a prefix is shared in whole blocks.
        context: the most tokens of a prompt and its output; None where nothing is too long.
        num_token_ids: prompts given as ids have them below this; None where any will do.
    """

    block_size: int
    context: int | None
    num_token_ids: int | None

    def tokens(self, request: LineRequest) -> PromptTokens:
        """The way of one line, which raises whatever makes the model refuse it."""

    def encode_all(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Token ids of each text."""


@dataclass(slots=True)
class _Line:
    """One line on its way; without a request it is refused."""

    idx: int
    request: LineRequest | None = None
    tokens: PromptTokens | None = None
    written: list[WrittenPrompt] = field(default_factory=list)
    ids: list[Sequence[int]] = field(default_factory=list)


class TokenCounter:
    """Counts the lines of one model. Belongs to one thread at a time."""

    def __init__(self, source: PromptSource, context: int) -> None:
        """``context`` bounds the output of lines that give no bound."""
        self._source = source
        self._context = context

    def count(
        self, kind: LineKind, lines: Sequence[ItemInput], before: ItemInput | None = None
    ) -> Count:
        """Count some lines in the order in which they run, after the line ``before`` them."""
        opened = [_read(self._source, kind, item) for item in lines]
        first = [] if before is None else [_read(self._source, kind, before)]
        self._encode([*first, *opened])
        last: Sequence[int] = ()
        for line in first:
            fitted = self._fit(line)
            last = fitted.token_ids[-1] if fitted is not None else ()
        total = Count()
        for line in opened:
            counted, last = self._count(line, last)
            total += counted
        return total

    def _encode(self, lines: Sequence[_Line]) -> None:
        """Give every prompt of the lines its ids, all texts at once."""
        for line in lines:
            line.ids = [prompt.token_ids or () for prompt in line.written]
        for special in (False, True):
            places = [
                (line, number, prompt.text)
                for line in lines
                for number, prompt in enumerate(line.written)
                if prompt.token_ids is None and prompt.add_special_tokens is special
            ]
            if not places:
                continue
            texts = [text for _, _, text in places]
            for (line, number, _), ids in zip(places, self._ids(texts, special), strict=True):
                if ids is None:
                    line.request = None
                else:
                    line.ids[number] = ids

    def _ids(self, texts: list[str], special: bool) -> Sequence[list[int] | None]:
        try:
            return self._source.encode_all(texts, special)
        except Exception:  # one text that cannot be encoded must not cost the others their count
            if len(texts) == 1:
                return [None]
            return [ids for text in texts for ids in self._ids([text], special)]

    def _fit(self, line: _Line) -> TokenisedLine | None:
        """The line as it runs; None if it will be refused."""
        if line.request is None or line.tokens is None:
            return None
        try:
            fitted = fit(line.request, line.ids, line.tokens, self._source.context)
        except Exception:  # whatever it is, a worker meets it too and refuses the line
            return None
        most = self._source.num_token_ids
        for ids in fitted.token_ids:
            given = most is not None and (not ids or min(ids) < 0 or max(ids) >= most)
            if given or not ids:
                return None
        return fitted

    def _count(self, line: _Line, last: Sequence[int]) -> tuple[Count, Sequence[int]]:
        """One line, and the prompt that its successor may share a beginning with."""
        fitted = self._fit(line)
        if fitted is None:
            return Count(refused=1), last
        output = 0 if fitted.request.embedding is not None else 1
        longest = max(map(len, fitted.token_ids))
        limit = self._source.context
        if limit is not None and longest + output > limit:
            return Count(too_long=1, too_long_idx=(line.idx,)), last
        cached = 0
        for ids in fitted.token_ids:
            cached += _shared(last, ids, self._source.block_size)
            last = ids
        most = self._most_output(fitted) if output else 0
        is_bounded = not output or fitted.request.sampling.max_tokens is not None
        counted = Count(
            lines=1,
            input_tokens=sum(map(len, fitted.token_ids)),
            cached_tokens=cached,
            longest=longest,
            bounded_lines=int(is_bounded),
            bounded_output=most if is_bounded else 0,
            unbounded_lines=int(not is_bounded),
            unbounded_output=0 if is_bounded else most,
        )
        return counted, last

    def _most_output(self, fitted: TokenisedLine) -> int:
        """All tokens that the line's choices may have."""
        wanted = fitted.request.sampling.max_tokens
        most = 0
        for ids in fitted.token_ids:
            room = max(1, self._context - len(ids))
            most += room if wanted is None else min(wanted, room)
        return most * fitted.request.n


def _read(source: PromptSource, kind: LineKind, item: ItemInput) -> _Line:
    line = _Line(item.idx)
    try:
        line.request = read_request(item.data, kind.endpoint, kind.defaults, seed=0)
        line.tokens = source.tokens(line.request)
        line.written = write_prompts(line.request, line.tokens)
    except Exception:  # whatever it is, a worker meets it too and refuses the line
        line.request = None
        line.written = []
    return line


def _shared(before: Sequence[int], ids: Sequence[int], block_size: int) -> int:
    """How many tokens of a prompt the cache holds if the one before it is in there.

    Whole blocks only, and never all of it: the last token is always computed.
    """
    most = min(len(before), len(ids) - 1) // block_size * block_size
    for start in range(0, most, block_size):
        end = start + block_size
        if list(before[start:end]) != list(ids[start:end]):
            return start
    return most
