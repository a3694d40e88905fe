"""The first errors of a job, told by line: faults of a refused file, or lines that failed."""

from dataclasses import dataclass
from itertools import islice

import msgspec

from runner.db.session import SessionFactory
from runner.domain.states import JobState
from runner.services.contents import ERROR, read_view
from runner.services.job_records import JobRecord


@dataclass(frozen=True, slots=True)
class LineError:
    """One error. ``line`` counts from 1, None for the file as such."""

    line: int | None
    custom_id: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class ErrorList:
    """The first errors of a job in line order, and how many there are in all.

    Blank lines of the file are counted in a refused file, and are not counted afterwards.
    """

    shown: tuple[LineError, ...]
    total: int


class _Error(msgspec.Struct):
    code: str | None
    message: str


class _Body(msgspec.Struct):
    error: _Error


class _Response(msgspec.Struct):
    body: _Body


class _ErrorLine(msgspec.Struct):
    """A line of an error file, as ``runner.domain.answers`` writes it."""

    id: str
    custom_id: str | None
    response: _Response | None
    error: _Error | None


def first_errors(sessions: SessionFactory, job: JobRecord, limit: int) -> ErrorList:
    """Up to ``limit`` errors of a job, also while it runs."""
    if job.state is JobState.FAILED:
        faults = job.faults[:limit]
        shown = [LineError(fault.line, None, fault.code, fault.message) for fault in faults]
        return ErrorList(tuple(shown), job.fault_count)
    if ERROR in job.gone:
        return ErrorList((), job.totals.failed)
    lines = islice(read_view(sessions, job.id, ERROR), limit)
    return ErrorList(tuple(_read(line) for line in lines), job.totals.failed)


def _read(line: bytes) -> LineError:
    told = msgspec.json.decode(line, type=_ErrorLine)
    error = told.error or (told.response.body.error if told.response else None)
    assert error is not None, "an error line tells no error"
    idx = int(told.id.rpartition("_")[2])
    return LineError(idx + 1, told.custom_id, error.code or "error", error.message)
