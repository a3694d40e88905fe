"""A job's results as cells: what each row of a table was answered, in the order of its rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from heapq import merge
from operator import itemgetter
from typing import Any
from uuid import UUID

import msgspec

from runner.db.session import SessionFactory
from runner.domain.pricing import NANO
from runner.services.contents import ERROR, OUTPUT, read_view
from runner.services.line_usage import LineUsage, line_usage

_PAGE_LINES = 1000


@dataclass(frozen=True, slots=True)
class RowAnswer:
    """The end of one row: an answer with what it took, or an error. ``cost`` is what is billed."""

    answer: str | None
    finish_reason: str | None
    error: str | None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cost: Decimal | None = None


class _Response(msgspec.Struct):
    body: dict[str, Any]


class _Line(msgspec.Struct):
    id: str
    response: _Response


_decoder = msgspec.json.Decoder(_Line)


def row_answers(sessions: SessionFactory, job_id: UUID) -> Iterator[RowAnswer]:
    """One for every line of a chat job that has completed, in line order."""
    pairs = merge(_answered(sessions, job_id), _refused(sessions, job_id), key=itemgetter(0))
    for _, answer in pairs:
        yield answer


def _answered(sessions: SessionFactory, job_id: UUID) -> Iterator[tuple[int, RowAnswer]]:
    lines = read_view(sessions, job_id, OUTPUT)
    for line, used in zip(lines, _usage(sessions, job_id), strict=True):
        choice = _decoder.decode(line).response.body["choices"][0]
        answer = RowAnswer(
            choice["message"]["content"],
            choice["finish_reason"],
            None,
            used.prompt_tokens,
            used.output_tokens,
            Decimal(used.billed_nano) / NANO,
        )
        yield used.idx, answer


def _refused(sessions: SessionFactory, job_id: UUID) -> Iterator[tuple[int, RowAnswer]]:
    for line in read_view(sessions, job_id, ERROR):
        read = _decoder.decode(line)
        error = read.response.body["error"]
        idx = int(read.id.rpartition("_")[2])
        yield idx, RowAnswer(None, None, f"{error['message']} [{error['code']}]")


def _usage(sessions: SessionFactory, job_id: UUID) -> Iterator[LineUsage]:
    after = -1
    while True:
        with sessions() as session:
            page = line_usage(session, job_id, after, _PAGE_LINES)
        yield from page
        if len(page) < _PAGE_LINES:
            return
        after = page[-1].idx
