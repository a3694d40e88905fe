"""Traps 7 to 10 and 12: how batches end, and what is told of them on the way."""

from itertools import pairwise

from openai.types import Batch

from runner.conformance.exam import GOOD_LINES, REFUSED_LINES, Exam
from runner.conformance.requests import BAD_LINES
from runner.conformance.runs import ENDED, lines_of
from runner.conformance.verdicts import Fault, expect

_STATES = {"validating", "in_progress", "finalizing", "cancelling", *ENDED}


def all_lines_may_fail(exam: Exam) -> str:
    """``failed`` is for the file as such; lines that all fail still make a completed batch."""
    end = exam.refused.end
    expect(end.status == "completed", "the status 'completed'", end.status)
    expect(end.output_file_id is None, "no output file (null)", repr(end.output_file_id))
    expect(bool(end.error_file_id), "an error file", repr(end.error_file_id))
    lines = lines_of(exam.client, end.error_file_id)
    codes = [(line.get("response") or {}).get("status_code") for line in lines]
    expect(codes == [400] * REFUSED_LINES, f"{REFUSED_LINES} lines with status_code 400", codes)
    return f"completed, {len(lines)} lines in the error file"


def no_error_file_without_errors(exam: Exam) -> str:
    """An id that is "" or names an empty file is taken for errors."""
    end = exam.good.end
    expect(end.status == "completed", "the status 'completed'", end.status)
    expect(end.error_file_id is None, "error_file_id null", repr(end.error_file_id))
    expect(end.errors is None, "errors null", end.errors)
    return "error_file_id is null"


def states_are_the_contracts(exam: Exam) -> str:
    """Clients raise on a status that they do not know."""
    _make_all(exam)
    seen = [batch.status for run in exam.runs for batch in run.polls]
    other = sorted({repr(status) for status in seen if status not in _STATES})
    expect(not other, f"one of {', '.join(sorted(_STATES))}", ", ".join(other))
    return f"{', '.join(sorted(set(seen)))} in {len(seen)} polls"


def counts_only_grow(exam: Exam) -> str:
    """Counts are there from the first moment, never fall, and add up at the end."""
    _make_all(exam)
    for run in exam.runs:
        counts = [_counts(batch) for batch in run.polls]
        for (_, *before), (_, *after) in pairwise(counts):
            grows = all(new >= old for old, new in zip(before, after, strict=True))
            expect(grows, f"counts that never fall in {run.end.id}", f"{before}, then {after}")
        total, completed, failed = counts[-1]
        expect(completed + failed <= total, "no more lines than there are", counts[-1])
    good, refused = (GOOD_LINES, GOOD_LINES, 0), (REFUSED_LINES, 0, REFUSED_LINES)
    for run, wanted in ((exam.good, good), (exam.refused, refused)):
        expect(_counts(run.end) == wanted, f"counts {wanted} at the end", _counts(run.end))
    return f"{GOOD_LINES} and {REFUSED_LINES} lines add up; {len(exam.runs)} runs only grew"


def a_bad_file_names_its_faults(exam: Exam) -> str:
    """Every bad line is named by number and code, in one answer."""
    end = exam.faulty.end
    expect(end.status == "failed", "the status 'failed'", end.status)
    files = (end.output_file_id, end.error_file_id)
    expect(files == (None, None), "neither an output nor an error file", files)
    faults = (end.errors.data if end.errors is not None else None) or []
    found = {(fault.line, fault.code) for fault in faults}
    missing, more = BAD_LINES - found, found - BAD_LINES
    expect(not missing and not more, f"{sorted(BAD_LINES)}", found)
    return f"{len(found)} faults by line and code"


def _make_all(exam: Exam) -> None:
    """The runs that end by themselves; those that other traps made are there already."""
    for run in (exam.good, exam.refused, exam.faulty):
        expect(run.end.status in ENDED, "an end", run.end.status)


def _counts(batch: Batch) -> tuple[int, int, int]:
    """Total, completed and failed."""
    counts = batch.request_counts
    if counts is None:
        raise Fault(f"request_counts while {batch.status}", None)
    told = (counts.total, counts.completed, counts.failed)
    expect(all(isinstance(count, int) for count in told), "three integers", told)
    return told
