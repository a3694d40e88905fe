"""The ticks that make every lost message harmless: the database is read, and rung from again.

Each step is a small transaction of its own and repeats its predicate, so two reconcilers at once
do no harm.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from runner.config import Settings
from runner.db.models import Job, OutboxEvent, Shard
from runner.db.outages import cause_of
from runner.db.partitions import ensure_partitions
from runner.db.session import OUTAGES, SessionFactory
from runner.domain.rings import Bell
from runner.domain.states import JobState, ShardState
from runner.doorbell import ring
from runner.failpoints import FailPoint, hit
from runner.services.alerts import raise_alerts
from runner.services.budget_alerts import tell_of_spending
from runner.services.budgets import resume_within_budgets
from runner.services.closing import close_if_drained
from runner.services.copies import ring_for_copies
from runner.services.deliveries import ring_for_events
from runner.services.job_estimates import renew_estimates, uncounted_jobs
from runner.services.jobs import drop_open_shards
from runner.services.pausing import PAUSED_AT_MOST
from runner.services.profiles import purge_profiles
from runner.services.purging import purge_gone
from runner.services.recovery import requeue_expired_leases
from runner.services.repeats import release_keys
from runner.services.retention import remove_when_due
from runner.services.rollup import differences, rebuild, roll_up_live
from runner.services.schedule_runs import plan_runs, ring_for_runs
from runner.services.turns import forget_served
from runner.services.uploads import purge_uploads
from runner.services.workers import bury_silent

logger = logging.getLogger(__name__)

_OUTBOX_KEPT = timedelta(days=30)
_SETTLING_SECONDS = 5.0  # beyond a heartbeat: the longest pause between the tries of a worker


class Contact:
    """Whether this process has been in touch with the database without a break.

    After an outage every worker looks silent and every lease has lapsed. Who was cut off itself
    must not call others dead before they have had the time to be heard again.
    """

    def __init__(self, settings: Settings) -> None:
        self._longest_break = max(2 * settings.tick_seconds, settings.lease_seconds / 2)
        self._settling = settings.heartbeat_seconds + _SETTLING_SECONDS
        self._last = self._since = -math.inf

    @property
    def is_settled(self) -> bool:
        """Whether contact has lasted long enough to judge others by their silence."""
        return self._last - self._since >= self._settling

    def lose(self) -> None:
        """Note that there was none just now."""
        self._last = -math.inf

    def renew(self, session: Session) -> None:
        """Make contact and note it; raises what makes it none."""
        session.connection()
        now = time.monotonic()
        if now - self._last > self._longest_break:
            self._since = now
        self._last = now


def reconcile(sessions: SessionFactory, settings: Settings, contact: Contact | None = None) -> None:
    """One tick: free lapsed leases, end overdue jobs, close drained ones, plan runs, ring, purge.

    Without ``contact``, workers that seem silent are believed to be.
    """
    for step in _steps(settings, contact):
        try:
            with sessions.begin() as session:
                step(session)
            hit(FailPoint.TICK_BETWEEN_STEPS)
        except OUTAGES as error:
            if contact is not None:
                contact.lose()
            logger.warning(
                "A step of the tick failed: %s", cause_of(error), extra={"action": "tick_failed"}
            )
        except SQLAlchemyError:  # one step's trouble must not starve the others
            logger.exception("A step of the tick failed.", extra={"action": "tick_failed"})


def _steps(settings: Settings, contact: Contact | None) -> Iterator[Callable[[Session], object]]:
    """The steps of a tick. Each is asked for when its turn comes: an outage may lie between."""
    if contact is not None:
        yield lambda session: contact.renew(session)
    if contact is None or contact.is_settled:
        yield requeue_expired_leases
    if contact is None or contact.is_settled:
        yield lambda session: bury_silent(session, settings.lease_seconds)
    yield expire_overdue_jobs
    yield _close_drained_jobs
    yield resume_within_budgets
    yield tell_of_spending
    yield _ring_for_unread_jobs
    yield _ring_for_uncounted_jobs
    yield ring_for_copies
    yield _ring_for_open_shards
    yield plan_runs
    yield ring_for_runs
    yield ring_for_events
    yield roll_up_live
    yield renew_estimates
    yield raise_alerts
    yield purge_gone


def keep_house(sessions: SessionFactory) -> None:
    """The slow chores: partitions of coming weeks, late uploads, traces that nobody fetched, old
    idempotency keys, faded shares and events, and once a day the lines that retention lets go."""
    with sessions.begin() as session:
        made = ensure_partitions(session.connection(), datetime.now(UTC))
        if made:
            logger.info("Made %d partitions.", made, extra={"action": "partitions_made"})
    hit(FailPoint.HOUSE_BETWEEN_CHORES)
    with sessions.begin() as session:
        purge_uploads(session)
    with sessions.begin() as session:
        purge_profiles(session)
    with sessions.begin() as session:
        release_keys(session)
        forget_served(session)
    with sessions.begin() as session:
        _mend_roll_ups(session)
    with sessions.begin() as session:
        session.execute(
            delete(OutboxEvent).where(OutboxEvent.created_at < func.now() - _OUTBOX_KEPT)
        )
    remove_when_due(sessions)


def _mend_roll_ups(session: Session) -> None:
    """Make again what does not say the same as its job, of an older version or by our fault."""
    for found in differences(session):
        if rebuild(session, found.job_id):
            logger.warning(
                "The roll-up of job %s was made again.", found.job_id, extra={"action": "rolled_up"}
            )


def expire_overdue_jobs(session: Session) -> int:
    """Stop every job past its deadline: what is finished stays, the rest will be told so.

    The clock of a paused job stands still, but not for ever.
    """
    overdue = session.scalars(
        update(Job)
        .where(
            Job.state.in_((JobState.VALIDATING, JobState.IN_PROGRESS)),
            or_(
                Job.paused_at.is_(None) & (Job.expires_at <= func.now()),
                Job.paused_at <= func.now() - PAUSED_AT_MOST,
            ),
        )
        .values(state=JobState.FINALIZING, outcome="expired", finalizing_at=func.now())
        .returning(Job.id)
    ).all()
    for job_id in overdue:
        drop_open_shards(session, job_id)
        ring(session, Bell.CANCEL, job_id)
        ring(session, Bell.FINALISE, job_id)
    return len(overdue)


def _close_drained_jobs(session: Session) -> None:
    ending = select(Job.id).where(
        Job.state.in_((JobState.IN_PROGRESS, JobState.FINALIZING, JobState.CANCELLING))
    )
    for job_id in session.scalars(ending).all():
        close_if_drained(session, job_id)


def _ring_for_unread_jobs(session: Session) -> None:
    # A reader that lives holds the job's lock, so a needless ring costs one look.
    for job_id in session.scalars(select(Job.id).where(Job.state == JobState.VALIDATING)):
        ring(session, Bell.INGEST, job_id)


def _ring_for_uncounted_jobs(session: Session) -> None:
    # A killed worker's leases lapse, and what it began is begun again.
    for job_id in uncounted_jobs(session):
        ring(session, Bell.COUNT, job_id)


def _ring_for_open_shards(session: Session) -> None:
    is_open = select(Shard.shard_no).where(Shard.job_id == Job.id, Shard.state == ShardState.OPEN)
    waiting = select(Job.id).where(
        Job.state == JobState.IN_PROGRESS, Job.paused_at.is_(None), is_open.exists()
    )
    if session.scalar(waiting.limit(1)) is not None:
        ring(session, Bell.WAKE)
