"""Trap 6: cancelling."""

from openai import BadRequestError
from openai.types import Batch

from runner.conformance.exam import LONG_LINES, Exam
from runner.conformance.runs import lines_of
from runner.conformance.verdicts import Fault, expect


def cancel_in_each_state(exam: Exam) -> str:
    """It works while a batch lives, is harmless twice, and is a 400 once the batch has ended.

    ``finalizing`` passes too fast to be met from outside.
    """
    young = exam.create(exam.long_file, metadata={"cancel": f"{exam.target.nonce}-young"})
    _cancel(exam, young)
    running = exam.create(exam.long_file, metadata={"cancel": f"{exam.target.nonce}-running"})
    found = exam.follow(running, "in_progress").end
    expect(found.status == "in_progress", "a batch in progress", found.status)
    cancelled = _cancel(exam, running)
    _check_lines(exam, cancelled)
    for ended in (cancelled, exam.good.end, exam.faulty.end):
        _refuses(exam, ended)
    return "validating, in_progress, cancelling, cancelled, completed, failed"


def _cancel(exam: Exam, batch: Batch) -> Batch:
    """Cancel a live batch twice, and give it as it ended."""
    answer = exam.client.batches.cancel(batch.id)
    expect(answer.status in ("cancelling", "cancelled"), "cancelling or cancelled", answer.status)
    expect(answer.cancelling_at is not None, "cancelling_at", None)
    if answer.status == "cancelling":
        try:
            again = exam.client.batches.cancel(batch.id)
            expect(again.status in ("cancelling", "cancelled"), "cancelling again", again.status)
        except BadRequestError:  # right only if it has ended meanwhile
            now = exam.client.batches.retrieve(batch.id).status
            expect(now == "cancelled", "a second cancel to be harmless", f"400 while {now}")
    end = exam.follow(batch).end
    expect(end.status == "cancelled", "the end 'cancelled'", end.status)
    return end


def _check_lines(exam: Exam, batch: Batch) -> None:
    lines = [
        line["custom_id"]
        for file_id in (batch.output_file_id, batch.error_file_id)
        for line in lines_of(exam.client, file_id)
    ]
    expect(len(lines) == len(set(lines)), "each line once over both files", len(lines))
    expect(len(lines) in (0, LONG_LINES), f"all {LONG_LINES} lines told of", len(lines))


def _refuses(exam: Exam, batch: Batch) -> None:
    try:
        answer = exam.client.batches.cancel(batch.id)
    except BadRequestError:
        return
    except Exception as error:
        raise Fault(f"400 for a batch that is {batch.status}", repr(error)) from error
    raise Fault(f"400 for a batch that is {batch.status}", f"200, {answer.status}")
