"""Trap 2: lists."""

from concurrent.futures import ThreadPoolExecutor

from runner.conformance.exam import Exam
from runner.conformance.requests import chat_line
from runner.conformance.verdicts import Fault, expect

_BATCHES, _PAGE, _AT_ONCE = 250, 20, 4


def pages_end(exam: Exam) -> str:
    """Paging ends and shows each batch once; a cursor that is ignored would begin anew for ever.

    The batches cost nothing: no model has the name in their one line.
    """
    file_id = exam.upload(chat_line("p", "no-such-model-anywhere", "Say yes."))

    def make(number: int) -> str:
        return exam.create(file_id, metadata={"number": f"{exam.target.nonce}-{number}"}).id

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        made = set(threads.map(make, range(_BATCHES)))
    expect(len(made) == _BATCHES, f"{_BATCHES} batches of {_BATCHES} creates", len(made))
    seen: set[str] = set()
    for batch in exam.client.batches.list(limit=_PAGE):
        if batch.id in seen:
            raise Fault("each batch once", f"{batch.id} again after {len(seen)} batches")
        seen.add(batch.id)
    expect(made <= seen, "all of them in the list", f"{len(made - seen)} missing")
    return f"{len(seen)} batches, each once"
