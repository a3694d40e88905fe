"""The seventeen traps in a row."""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from runner.conformance import (
    cancels,
    creates,
    curator,
    expiry,
    files,
    lists,
    outcomes,
    tenants,
    webhooks,
)
from runner.conformance.exam import Exam
from runner.conformance.target import Target
from runner.conformance.verdicts import Fault, Finding, NotChecked, Verdict


@dataclass(frozen=True, slots=True)
class Trap:
    """One place where servers fail."""

    number: int
    what: str
    check: Callable[[Exam], str]


TRAPS = (
    Trap(1, "files.wait_for_processing returns", files.waiting_for_a_file_ends),
    Trap(2, "paging through 250 batches ends, each once", lists.pages_end),
    Trap(3, "bytes are uploaded", files.bytes_are_uploaded),
    Trap(4, "a large file streams", files.content_streams),
    Trap(5, "a repeated create makes one batch", creates.a_repeat_makes_one_batch),
    Trap(6, "cancel in each state", cancels.cancel_in_each_state),
    Trap(7, "all lines fail: completed, output null", outcomes.all_lines_may_fail),
    Trap(8, "no line fails: error file null", outcomes.no_error_file_without_errors),
    Trap(9, "status never outside the contract", outcomes.states_are_the_contracts),
    Trap(10, "counts never null, never falling, sum right", outcomes.counts_only_grow),
    Trap(11, "expiry keeps finished work", expiry.expiry_keeps_what_is_done),
    Trap(12, "a bad file: failed, all faults by line", outcomes.a_bad_file_names_its_faults),
    Trap(13, "webhooks.unwrap accepts", webhooks.unwrap_accepts),
    Trap(14, "metadata and output_expires_after come back", creates.terms_come_back),
    Trap(15, "retrieve right after create", creates.a_new_batch_is_found_at_once),
    Trap(16, "another tenant's ids are 404", tenants.foreign_ids_are_unknown),
    Trap(17, "Curator drives a run to its end", curator.curator_reaches_its_end),
)


def examine(target: Target, numbers: Collection[int] = ()) -> Iterator[Finding]:
    """Try the traps of those numbers, all if none is given; each finding as it is made."""
    exam = Exam(target)
    with exam.client:
        for trap in TRAPS:
            if not numbers or trap.number in numbers:
                yield _try(trap, exam)


def _try(trap: Trap, exam: Exam) -> Finding:
    began = time.monotonic()
    try:
        verdict, said = Verdict.PASSED, trap.check(exam)
    except NotChecked as error:
        verdict, said = Verdict.NOT_CHECKED, str(error)
    except Fault as error:
        verdict, said = Verdict.FAILED, str(error)
    except Exception as error:  # what a server may make of a client has no end
        came = Fault("an answer that the client can read", f"{type(error).__name__}: {error}")
        verdict, said = Verdict.FAILED, str(came)
    return Finding(trap.number, trap.what, verdict, said, time.monotonic() - began)
