"""The money side of a claim: no line is leased that a limit could not bear at its dearest.

For a limited job each leased line has its upper bound reserved on its shard; the commit of its
result turns that into what it was really billed, and whatever else ends the lease frees it. So
spent plus reserved never passes a limit, whoever claims, crashes or comes late.

Claims under the same limits take turns by an advisory lock on the project, taken before any row:
of two at once each would else see the money that the other is about to take. A claim never waits
for a row, so it has no part in any deadlock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import psycopg
from sqlalchemy import func, insert, or_, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from runner.db.models import Budget, Job, Model, Price, Shard
from runner.domain.budgets import Limit, affordable, amount, most_billed_nano, tightest
from runner.domain.defaults import Defaults
from runner.domain.ids import ModelId
from runner.domain.lines import parse_line
from runner.domain.states import JobState, PauseReason, ShardState
from runner.services.audit import record
from runner.services.budget_alerts import USED_UP, tell
from runner.services.events import announce
from runner.services.items import read_lines
from runner.services.job_models import names
from runner.services.models import price_of
from runner.services.spending import limits_of_job

_LOCK = 7_461_035  # the class of our advisory locks on the money of projects
_TURN_SECONDS = 1.0  # how long a claim waits for another; a stopped worker may sit on its lock


Bounds = dict[int, int]
"""The most that each line can be billed, by ``idx``."""


@dataclass(frozen=True, slots=True)
class Payers:
    """Projects with limits among those that wait, and those of them whose turn is ours."""

    limited: frozenset[UUID]
    ours: frozenset[UUID]

    def has_limits(self, job: Job) -> bool:
        """Whether lines of a job may count against a limit."""
        return job.max_cost_nano is not None or job.project_id in self.limited


def take_turns(session: Session, model_id: ModelId) -> Payers:
    """Wait for other claims under the same limits; call it before anything is locked."""
    has_budget = select(Budget.payer_id).where(Budget.project_id == Job.project_id)
    limited = (
        select(Job.project_id)
        .where(
            Job.state == JobState.IN_PROGRESS,
            Job.paused_at.is_(None),
            names(model_id),
            or_(Job.max_cost_nano.is_not(None), has_budget.exists()),
        )
        .distinct()
    )
    places = sorted((_place(project_id), project_id) for project_id in session.scalars(limited))
    return Payers(
        limited=frozenset(project_id for _, project_id in places),
        ours=frozenset(project_id for place, project_id in places if _is_our_turn(session, place)),
    )


def _place(project_id: UUID) -> int:
    return int.from_bytes(project_id.bytes[-4:], signed=True)


def _is_our_turn(session: Session, place: int) -> bool:
    lock = text(
        "SELECT set_config('lock_timeout', :patience, true), pg_advisory_xact_lock(:kind, :place)"
    )
    patience = f"{int(_TURN_SECONDS * 1000)}ms"
    try:
        with session.begin_nested():
            session.execute(lock, {"patience": patience, "kind": _LOCK, "place": place})
    except OperationalError as error:
        if isinstance(error.orig, psycopg.errors.LockNotAvailable):
            return False
        raise
    session.execute(text("SET LOCAL lock_timeout = 0"))
    return True


class Allowance:
    """What the lines of one limited job may reserve in this claim."""

    def __init__(self, session: Session, job: Job, limits: Sequence[Limit]) -> None:
        self._session = session
        self._job = job
        self._limit = tightest(limits)
        self._left = self._limit.left_nano
        self._is_idle = self._limit.reserved_nano == 0
        self._defaults = Defaults(job.defaults)

    def reserve(self, shards: Sequence[Shard]) -> dict[int, Bounds]:
        """As many of some locked open shards, in order, as the money does for, by number.

        Where not even the first fits and nothing else is at work that could free money, the lines
        that fit are split off it; if there are none, the job pauses.
        """
        reserved: dict[int, Bounds] = {}
        for shard in shards:
            bounds = self._bounds(shard)
            need = sum(bounds.values())
            if need <= self._left:
                self._left -= need
                reserved[shard.shard_no] = bounds
                continue
            if self._is_idle and not reserved:
                reserved = self._reserve_part(shard, bounds)
            break
        return reserved

    def bear(self, each_nano: int, lines: int) -> int:
        """How many of some lines at a fixed price the money does for; they have their answers.

        Where it does for none, and nothing is at work that could free money, the job pauses.
        """
        fitting = min(lines, max(0, self._left) // each_nano)
        self._left -= fitting * each_nano
        if lines and not fitting and self._is_idle and self._lock_job():
            self._pause(each_nano)
        return fitting

    def _bounds(self, shard: Shard) -> Bounds:
        """The most that each unfinished line of a shard can be billed."""
        job, price = self._job, price_of(self._session.get_one(Price, shard.price_id))
        context = self._session.get_one(Model, shard.model_id).context_length
        items = read_lines(self._session, job.id, job.input_file_id, shard.idx)
        bounds = {}
        for item in items:
            line = parse_line(item.data, job.endpoint, len(item.data), self._defaults)
            bounds[item.idx] = most_billed_nano(line.outline, price, context)
        return bounds

    def _reserve_part(self, shard: Shard, bounds: Bounds) -> dict[int, Bounds]:
        fitting = affordable(bounds, self._left)
        if not self._lock_job():  # who has it may be ending the job: another claim will see
            return {}
        if not fitting:
            self._pause(min(bounds.values()))
            return {}
        shard_no = self._split(shard, fitting, [idx for idx in bounds if idx not in fitting])
        return {shard_no: {idx: bounds[idx] for idx in fitting}}

    def _lock_job(self) -> bool:
        query = select(Job.id).where(
            Job.id == self._job.id, Job.state == JobState.IN_PROGRESS, Job.paused_at.is_(None)
        )
        return self._session.scalar(query.with_for_update(skip_locked=True)) is not None

    def _split(self, shard: Shard, part: Sequence[int], rest: Sequence[int]) -> int:
        """Put the unfinished lines of a shard into two new ones; returns the first's number."""
        last = select(func.max(Shard.shard_no)).where(Shard.job_id == shard.job_id)
        first_no = (self._session.scalar(last) or 0) + 1
        shard.state = ShardState.SPLIT
        self._session.flush()
        self._session.execute(
            insert(Shard).values(
                [
                    {
                        "job_id": shard.job_id,
                        "shard_no": shard_no,
                        "model_id": shard.model_id,
                        "price_id": shard.price_id,
                        "idx": list(idx),
                        "state": ShardState.OPEN,
                        "attempt": shard.attempt,
                        "suspect": shard.suspect,
                        "not_before": shard.not_before,
                    }
                    for shard_no, idx in ((first_no, part), (first_no + 1, rest))
                    if idx
                ]
            )
        )
        return first_no

    def _pause(self, needs_nano: int) -> None:
        note = f"Stopped by its budget: the next line can cost {amount(needs_nano)}, and "
        note += f"{self._limit.told()}. It goes on once the limit is raised"
        note += "." if self._limit.payer_id == self._job.id else ", or next month."
        job = self._job
        job.paused_at = func.now()
        job.pause_reason = PauseReason.BUDGET
        job.pause_note = note
        job.pause_needs_nano = needs_nano
        self._session.flush()
        tell(self._session, self._limit, USED_UP)
        detail = {"limit": self._limit.kind.value, "needs_nano": needs_nano}
        record(
            self._session,
            "job.pause",
            str(job.id),
            project_id=job.project_id,
            actor="budget",
            detail=detail,
        )
        announce(
            self._session,
            job.project_id,
            "job.paused",
            {"job_id": str(job.id), "reason": "budget", "message": note, **detail},
        )


@dataclass(frozen=True, slots=True)
class MoneyTurn:
    """A turn at the money of a job's project; without limits there is no allowance to keep to."""

    allowance: Allowance | None


def allowance_in_turn(session: Session, job: Job) -> MoneyTurn | None:
    """Wait for claims under the limits of a job, if it has some; None where that takes too long.

    Call it before anything is locked.
    """
    budget = select(Budget.payer_id).where(Budget.project_id == job.project_id).limit(1)
    if job.max_cost_nano is None and session.scalar(budget) is None:
        return MoneyTurn(None)
    if not _is_our_turn(session, _place(job.project_id)):
        return None
    return MoneyTurn(allowance_of(session, job))


def allowance_of(session: Session, job: Job) -> Allowance | None:
    """What a job may reserve; None for a job without limits."""
    limits = limits_of_job(session, job)
    return Allowance(session, job, limits) if limits else None
