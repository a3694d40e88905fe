"""Trap 11: windows that close."""

from openai import BadRequestError
from openai.types import Batch

from runner.conformance.exam import LONG_LINES, Exam
from runner.conformance.runs import lines_of
from runner.conformance.verdicts import NotChecked, expect

_WINDOWS = ("10s", "30s", "1m")
_LOOK_AT = 500  # batches of the list in which an expired one is looked for


def expiry_keeps_what_is_done(exam: Exam) -> str:
    """Finished lines stay in the output; each other one is told of as ``batch_expired``."""
    end = _expired(exam)
    total = end.request_counts.total if end.request_counts is not None else 0
    done = lines_of(exam.client, end.output_file_id)
    rest = lines_of(exam.client, end.error_file_id)
    codes = {(line.get("error") or {}).get("code") for line in rest}
    expect(bool(done), "finished lines in the output file", "none")
    expect("batch_expired" in codes, "lines with error.code batch_expired", codes)
    names = {line["custom_id"] for line in (*done, *rest)}
    told = len(done) + len(rest)
    expect(told == len(names) == total, f"{total} lines, each once", f"{told}, {len(names)} names")
    return f"{len(done)} lines done, {len(rest)} in the error file"


def _expired(exam: Exam) -> Batch:
    """A batch whose window closed before its last line was done.

    A server that did nothing in a short window gets a longer one. Where it takes none that is short
    enough to wait for, a batch that expired earlier will do.
    """
    end: Batch | None = None
    for window in _WINDOWS:
        try:
            batch = exam.create(exam.long_file, window)
        except BadRequestError:
            continue
        end = exam.follow(batch).end
        said = f"{end.status}; a slower --model has lines left when {window} are over"
        expect(end.status == "expired", f"'expired' after {window} for {LONG_LINES} lines", said)
        if end.request_counts is None or end.request_counts.completed:
            break
    if end is not None:
        return end
    for number, batch in enumerate(exam.client.batches.list(limit=100)):
        if batch.status == "expired" and batch.output_file_id:
            return batch
        if number >= _LOOK_AT:
            break
    raise NotChecked(
        f"The server takes no window of {', '.join(_WINDOWS)}, and no batch of this key has "
        "expired with work done; let one expire and look again."
    )
