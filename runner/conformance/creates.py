"""Traps 5, 14 and 15: creating batches."""

from runner.conformance.exam import OUTPUT_SECONDS, Exam
from runner.conformance.requests import ENDPOINT, good_lines
from runner.conformance.verdicts import expect

_TRIES = 5


def a_repeat_makes_one_batch(exam: Exam) -> str:
    """The client repeats a create whose answer was lost, and tells so by a header alone."""
    file_id = exam.upload(good_lines(exam.model, 1))
    made = [
        exam.client.batches.create(
            input_file_id=file_id,
            endpoint=ENDPOINT,
            completion_window="24h",
            metadata={"examination": exam.target.nonce, "trap": "repeat"},
            extra_headers={"x-stainless-retry-count": str(tries)},
        ).id
        for tries in range(3)
    ]
    expect(len(set(made)) == 1, "one batch for a create and two repeats of it", made)
    return f"{made[0]} three times"


def terms_come_back(exam: Exam) -> str:
    """Metadata is unchanged at the end, and the results live as long as was asked."""
    end = exam.good.end
    first = exam.good.polls[0]
    for batch in (first, end):
        expect(batch.metadata == exam.metadata, f"metadata {exam.metadata}", batch.metadata)
    expect(bool(end.output_file_id), "an output file", end.output_file_id)
    file = exam.client.files.retrieve(end.output_file_id or "")
    expires_at = getattr(file, "expires_at", None)
    wanted = file.created_at + OUTPUT_SECONDS
    expect(expires_at == wanted, f"the output's expires_at {wanted}", expires_at)
    return f"{len(exam.metadata)} entries; the output lives {OUTPUT_SECONDS} s"


def a_new_batch_is_found_at_once(exam: Exam) -> str:
    """What a create has named can be retrieved and listed by the very next call."""
    file_id = exam.upload(good_lines(exam.model, 1))
    for number in range(_TRIES):
        made = exam.create(file_id, metadata={"at-once": f"{exam.target.nonce}-{number}"})
        found = exam.client.batches.retrieve(made.id)
        expect(found.id == made.id, made.id, found.id)
        newest = [batch.id for batch in exam.client.batches.list(limit=_TRIES).data]
        expect(made.id in newest, f"{made.id} among the newest of the list", newest)
    return f"{_TRIES} of {_TRIES}"
