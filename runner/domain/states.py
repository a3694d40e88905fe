"""States of jobs, shards and workers and every legal move of a job (see docs/states.md)."""

from enum import StrEnum


class JobState(StrEnum):
    """The life of a job; the words are those of the wire contract."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True when the job can never change again."""
        return not MOVES[self]


MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.VALIDATING: frozenset(
        {JobState.IN_PROGRESS, JobState.FAILED, JobState.CANCELLING, JobState.FINALIZING}
    ),
    JobState.IN_PROGRESS: frozenset({JobState.FINALIZING, JobState.CANCELLING}),
    JobState.FINALIZING: frozenset({JobState.COMPLETED, JobState.EXPIRED, JobState.CANCELLING}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.EXPIRED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

LIVE_JOB_STATES = tuple(state for state in JobState if not state.is_terminal)
TERMINAL_JOB_STATES = tuple(state for state in JobState if state.is_terminal)


PAUSABLE_JOB_STATES = (JobState.VALIDATING, JobState.IN_PROGRESS)


class PauseReason(StrEnum):
    """Who paused a job. A pause lies over a state and is none: the wire has no word for it."""

    USER = "user"
    BUDGET = "budget"


class ShardState(StrEnum):
    """Where a shard is: waiting, held by a worker, waiting for the answers of other lines, or ended
    in one of three ways."""

    OPEN = "open"
    LEASED = "leased"
    FOLLOWING = "following"
    DONE = "done"
    SPLIT = "split"
    DROPPED = "dropped"


COMPUTED_SHARD_STATES = (ShardState.OPEN, ShardState.LEASED)
PENDING_SHARD_STATES = (*COMPUTED_SHARD_STATES, ShardState.FOLLOWING)


class DeliveryState(StrEnum):
    """Where an event on its way to a webhook is: still tried, taken, or given up."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"


class WorkerState(StrEnum):
    """The life of one worker process."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    ENDED = "ended"
    DEAD = "dead"


LIVE_WORKER_STATES = (WorkerState.STARTING, WorkerState.READY, WorkerState.DRAINING)
