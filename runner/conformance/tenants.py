"""Trap 16: what another tenant sees."""

from collections.abc import Callable

from openai import APIStatusError, BadRequestError, NotFoundError, OpenAI

from runner.conformance.exam import Exam
from runner.conformance.requests import ENDPOINT, good_lines
from runner.conformance.verdicts import Fault, expect


def foreign_ids_are_unknown(exam: Exam) -> str:
    """The id of another tenant's batch or file is answered as one that never was: by 404.

    Without a key of another tenant only ids that never were can be asked for; the sentence that
    is given says so.
    """
    file_id = exam.upload(good_lines(exam.model, 1))
    batch_id = exam.create(file_id, metadata={"tenant": exam.target.nonce}).id
    if exam.target.other_api_key is None:
        _ask(exam.client, _never_was(file_id), _never_was(batch_id))
        return "404 for ids that never were (--other-api-key asks as another tenant)"
    with exam.target.client(exam.target.other_api_key) as stranger:
        _ask(stranger, file_id, batch_id)
        listed = [batch.id for batch in stranger.batches.list(limit=100).data]
        expect(batch_id not in listed, "a list without the other tenant's batch", batch_id)
    expect(exam.client.files.retrieve(file_id).id == file_id, "the file untouched", "another")
    return "404 for another tenant's batch and file"


def _ask(client: OpenAI, file_id: str, batch_id: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "GET batch": lambda: client.batches.retrieve(batch_id),
        "cancel": lambda: client.batches.cancel(batch_id),
        "GET file": lambda: client.files.retrieve(file_id),
        "content": lambda: client.files.content(file_id),
        "DELETE file": lambda: client.files.delete(file_id),
    }
    for name, call in calls.items():
        _refuses(name, call, NotFoundError)

    def create() -> object:
        return client.batches.create(
            input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h"
        )

    _refuses("create", create, NotFoundError, BadRequestError)


def _refuses(name: str, call: Callable[[], object], *kinds: type[APIStatusError]) -> None:
    try:
        call()
    except kinds:
        return
    except APIStatusError as error:
        raise Fault(f"404 for {name}", error.status_code) from error
    raise Fault(f"404 for {name}", "success")


def _never_was(known: str) -> str:
    """An id of the same form."""
    digits = [letter for letter in known if letter.isdigit()]
    last = digits[-1] if digits else known[-1]
    place = known.rindex(last)
    other = "1" if last != "1" else "2"
    return f"{known[:place]}{other}{known[place + 1 :]}"
