"""What routes of workers answer: they are the installation's, nothing of a project is in them."""

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from runner.domain.ids import WORKER_PREFIX, encode
from runner.services.drains import WorkerRecord
from web.api.objects import Count, UnixSeconds
from web.api.wire import seconds, seconds_or_none

Rate = Annotated[float, Meta(ge=0)]
WorkerState = Annotated[
    str, Meta(extra_json_schema={"enum": ["starting", "ready", "draining", "drained"]})
]


class WorkerTimesObject(TypedDict):
    """Where a worker's time went since it started, in seconds."""

    busy: Rate
    idle: Rate
    load: Rate


class WorkerObject(TypedDict):
    """An engine worker that lives: a process with one model, or what it was before another.

    ``rows_in_use`` and the rates are as of its last heartbeat; rates are null until it has told.
    ``next_model`` is what it makes room for.
    """

    id: Annotated[str, Meta(pattern="^worker_[0-9a-z]{26}$")]
    object: Literal["worker"]
    host: str
    pid: int
    state: WorkerState
    model: str | None
    next_model: str | None
    lane: str | None
    lane_reason: str | None
    rows: Count
    rows_in_use: Count
    lines_in_hand: Count
    lines_per_second: Rate | None
    output_tokens_per_second: Rate | None
    seconds: WorkerTimesObject
    started_at: UnixSeconds
    last_seen_at: UnixSeconds
    drained_at: UnixSeconds | None


class WorkerList(TypedDict):
    """All engine workers that live, in order of their start."""

    object: Literal["list"]
    data: list[WorkerObject]


def worker_object(worker: WorkerRecord) -> WorkerObject:
    """A worker, as its routes show it."""
    return {
        "id": encode(WORKER_PREFIX, worker.id),
        "object": "worker",
        "host": worker.host,
        "pid": worker.pid,
        "state": worker.state,
        "model": worker.model,
        "next_model": worker.next_model,
        "lane": worker.lane.name or None,
        "lane_reason": worker.lane.reason or None,
        "rows": worker.rows,
        "rows_in_use": worker.rows_in_use,
        "lines_in_hand": worker.lines_in_hand,
        "lines_per_second": worker.lines_per_s,
        "output_tokens_per_second": worker.output_tokens_per_s,
        "seconds": {
            "busy": worker.busy_us / 1e6,
            "idle": worker.idle_us / 1e6,
            "load": worker.load_us / 1e6,
        },
        "started_at": seconds(worker.started_at),
        "last_seen_at": seconds(worker.last_seen_at),
        "drained_at": seconds_or_none(worker.drained_at),
    }
