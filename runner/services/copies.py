"""Lines that take the answer of an equal one, as soon as it is there.

They stand in shards that follow: nobody leases these, and all else about them is as with others. A
CPU worker writes each line's result with ids of its own, its row of the ledger and the counters of
its shard in one transaction. A line gets what the other got, an error too. An answer of an earlier
job that has gone since is not waited for: the lines of that shard are computed after all.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from runner.db.copy import copy_rows
from runner.db.models import Copy, Job, JobModel, Price, Result, Shard, Usage, WorkItem
from runner.db.session import SessionFactory
from runner.domain import pricing
from runner.domain.copies import copied_line
from runner.domain.ids import item_id
from runner.domain.rings import Bell
from runner.domain.states import JobState, ShardState
from runner.doorbell import ring
from runner.failpoints import FailPoint, hit
from runner.services.accounting import RESULT_COLUMNS, REUSED_COLUMNS, reused_row
from runner.services.allowances import Allowance, allowance_in_turn
from runner.services.answer_pool import Source
from runner.services.closing import close_if_drained
from runner.services.contents import OUTPUT
from runner.services.gone_lines import gone_views
from runner.services.models import price_of
from runner.services.spending import add_spending

_SHARDS_AT_ONCE = 16
_TURN_SECONDS = 3.0
"""How long one ring keeps a CPU worker."""


def run_copies(sessions: SessionFactory, job_id: UUID) -> int:
    """Let the lines of a job that follow others take their answers, as far as these are there.

    Shards are looked at in order until some of them have nothing to take. After a while the rest
    is rung for again, to make room for other jobs. Returns how many lines have an answer now, or
    are to be computed.
    """
    settled, end = 0, time.monotonic() + _TURN_SECONDS
    while some := _settle(sessions, job_id):
        settled += some
        if time.monotonic() >= end:
            with sessions.begin() as session:
                ring(session, Bell.COPY, job_id)
            return settled
    if settled:
        with sessions.begin() as session:
            close_if_drained(session, job_id)
    return settled


def ring_for_copies(session: Session) -> None:
    """The tick's part: have somebody look at the jobs of which lines follow others."""
    following = select(Shard.shard_no).where(
        Shard.job_id == Job.id, Shard.state == ShardState.FOLLOWING
    )
    query = select(Job.id).where(
        Job.state == JobState.IN_PROGRESS, Job.paused_at.is_(None), following.exists()
    )
    for job_id in session.scalars(query):
        ring(session, Bell.COPY, job_id)


def _settle(sessions: SessionFactory, job_id: UUID) -> int:
    """One transaction's worth."""
    with sessions.begin() as session:
        job = session.get(Job, job_id)
        if job is None or job.state != JobState.IN_PROGRESS or job.paused_at is not None:
            return 0
        turn = allowance_in_turn(session, job)
        if turn is None:  # a claim of its project has the money in hand; the next tick looks again
            return 0
        following = (
            select(Shard)
            .where(Shard.job_id == job_id, Shard.state == ShardState.FOLLOWING)
            .order_by(Shard.shard_no)
            .limit(_SHARDS_AT_ONCE)
            .with_for_update(skip_locked=True)
        )
        settling = _Settling(session, job, turn.allowance)
        settled = sum(settling.settle(shard) for shard in session.scalars(following).all())
        if settled:
            settling.write()
            hit(FailPoint.COPIES_BEFORE_COMMIT)
    return settled


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a line has been answered; ``used`` is its row of the ledger, None for an error."""

    line: bytes
    used: Usage | None

    @property
    def failed(self) -> bool:
        return self.used is None


@dataclass(frozen=True, slots=True)
class _Follower:
    """A line without an answer, and the line whose answer it takes."""

    idx: int
    custom_id: str
    source: Source


class _Settling:
    """Copies of one job, written in one transaction."""

    def __init__(self, session: Session, job: Job, allowance: Allowance | None) -> None:
        self._results: list[tuple[Any, ...]] = []
        self._usage: list[tuple[Any, ...]] = []
        self._billed: Counter[UUID] = Counter()  # by the worker that computed the answer
        self._session = session
        self._job = job
        self._allowance = allowance

    def settle(self, shard: Shard) -> int:
        """Give the lines of a locked shard their answers; returns how many have one now.

        All that are left count where one's answer is gone, for they are computed then.
        """
        followers = self._followers(shard)
        answers = _answers(self._session, {follower.source for follower in followers})
        price = price_of(self._session.get_one(Price, shard.price_id))
        ready = self._affordable(followers, answers, price)
        for follower in ready:
            self._take(shard, follower, answers[follower.source], price)
        if shard.succeeded + shard.failed == len(shard.idx):
            shard.state = ShardState.DONE
        elif any(self._is_gone(follower.source, answers) for follower in followers):
            self._compute(shard, len(followers) - len(ready))
            return len(followers)
        return len(ready)

    def write(self) -> None:
        """Write what the lines of all shards got, with the counters of these."""
        copy_rows(self._session, "results", RESULT_COLUMNS, self._results)
        copy_rows(self._session, "usage", REUSED_COLUMNS, self._usage)
        add_spending(self._session, self._job, self._billed)
        self._session.flush()

    def _compute(self, shard: Shard, lines: int) -> None:
        """Have what is left of a shard computed like others."""
        shard.state = ShardState.OPEN
        self._session.execute(
            update(JobModel)
            .where(JobModel.job_id == shard.job_id, JobModel.model_id == shard.model_id)
            .values(
                lines=JobModel.lines + lines,
                shards=JobModel.shards + 1,
                copies=JobModel.copies - lines,
            )
        )
        ring(self._session, Bell.WAKE)

    def _followers(self, shard: Shard) -> list[_Follower]:
        done = select(Result.idx).where(
            Result.job_id == shard.job_id, Result.idx == func.any(list(shard.idx))
        )
        left = set(shard.idx) - set(self._session.scalars(done))
        query = (
            select(Copy.idx, WorkItem.custom_id, Copy.source_job_id, Copy.source_idx)
            .join(WorkItem, (WorkItem.job_id == Copy.job_id) & (WorkItem.idx == Copy.idx))
            .where(Copy.job_id == shard.job_id, WorkItem.job_id == shard.job_id)
            .where(Copy.idx == func.any(list(left)))
            .order_by(Copy.idx)
        )
        return [
            _Follower(idx, custom_id, Source(job_id, source_idx))
            for idx, custom_id, job_id, source_idx in self._session.execute(query)
        ]

    def _affordable(
        self,
        followers: Sequence[_Follower],
        answers: Mapping[Source, _Answer],
        price: pricing.Price,
    ) -> list[_Follower]:
        """Those whose answer is there, and bearable if it costs anything."""
        ready = [one for one in followers if self._may_take(one.source, answers)]
        if self._allowance is None or not price.reused_nano:
            return ready
        good = [one for one in ready if not answers[one.source].failed]
        dear = set(good[self._allowance.bear(price.reused_nano, len(good)) :])
        return [one for one in ready if one not in dear]

    def _may_take(self, source: Source, answers: Mapping[Source, _Answer]) -> bool:
        """An error is taken within a job only: an earlier one's may have had its own reason."""
        found = answers.get(source)
        return found is not None and (not found.failed or source.job_id == self._job.id)

    def _is_gone(self, source: Source, answers: Mapping[Source, _Answer]) -> bool:
        return source.job_id != self._job.id and not self._may_take(source, answers)

    def _take(
        self, shard: Shard, follower: _Follower, answer: _Answer, price: pricing.Price
    ) -> None:
        line = _line(self._job.id, follower, answer)
        self._results.append((self._job.id, follower.idx, answer.used is None, 0, line))
        if answer.used is None:
            shard.failed += 1
            return
        shard.succeeded += 1
        shard.billed_nano += price.reused_nano
        self._billed[answer.used.worker_id] += price.reused_nano
        self._usage.append(reused_row(self._job, shard, follower.idx, answer.used, price))


def _line(job_id: UUID, follower: _Follower, answer: _Answer) -> bytes:
    source = item_id(follower.source.job_id, follower.source.idx)
    return copied_line(item_id(job_id, follower.idx), follower.custom_id, source, answer.line)


def _answers(session: Session, sources: Collection[Source]) -> dict[Source, _Answer]:
    """The answers that are there; those of an output that was deleted are not, though its bytes may
    still be. Lines are asked for by their numbers, so that no plan reads more than these of a
    partition whose statistics are old."""
    by_job: defaultdict[UUID, list[int]] = defaultdict(list)
    for source in sources:
        by_job[source.job_id].append(source.idx)
    gone = gone_views(session, by_job)
    found = {}
    for job_id, idx in by_job.items():
        if OUTPUT in gone.get(job_id, ()):
            continue
        usage = select(Usage).where(Usage.job_id == job_id, Usage.idx == func.any(idx))
        used = {row.idx: row for row in session.scalars(usage)}
        results = select(Result.idx, Result.failed, Result.line).where(
            Result.job_id == job_id, Result.idx == func.any(idx), Result.line.is_not(None)
        )
        for number, failed, line in session.execute(results):
            if line is not None and (failed or number in used):
                found[Source(job_id, number)] = _Answer(bytes(line), used.get(number))
    return found
