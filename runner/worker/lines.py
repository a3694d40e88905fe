"""What the threads of a worker hand to each other, and how an end becomes a result line."""

from dataclasses import dataclass, replace

from runner.domain.answers import error_body, refusal_line, success_line
from runner.domain.ids import item_id
from runner.domain.leases import FinishedItem, ItemInput, Lease, LineMetrics, ShardKey
from runner.inference.answers import answer_body
from runner.inference.backend import LineRefusal, Outcome


@dataclass(frozen=True, slots=True)
class Revoked:
    """Leases whose tasks have left the engine. ``release``: the database still has them as ours."""

    keys: frozenset[ShardKey]
    release: bool


class Closed:
    """Nothing more comes."""


Ended = Outcome | FinishedItem | Revoked | Closed
"""What goes to the writer, in order."""


def finished_outcome(outcome: Outcome) -> FinishedItem:
    """The result of a task that ended in the backend."""
    task = outcome.task
    wire_id = item_id(task.lease.key.job_id, task.idx)
    if isinstance(outcome.answer, LineRefusal):
        line = _refused(wire_id, task.custom_id, outcome.answer)
        return FinishedItem(task.lease, task.idx, True, line, outcome.metrics)
    body = answer_body(task, outcome.answer, outcome.metrics)
    line = success_line(wire_id, task.custom_id, body)
    metrics = replace(outcome.metrics, truncated_tokens=task.truncated_tokens)
    return FinishedItem(task.lease, task.idx, False, line, metrics)


def finished_refusal(lease: Lease, item: ItemInput, refusal: LineRefusal) -> FinishedItem:
    """The result of a line that never reached the backend."""
    line = _refused(item_id(lease.key.job_id, item.idx), item.custom_id, refusal)
    return FinishedItem(lease, item.idx, True, line, LineMetrics())


def _refused(wire_id: str, custom_id: str, refusal: LineRefusal) -> bytes:
    error = error_body(refusal.status, refusal.message, refusal.code, refusal.param)
    return refusal_line(wire_id, custom_id, refusal.status, error)
