"""Reading a job's file once, as a stream: every line checked, placed, and put into shards.

The whole ingest is one transaction, so a worker killed in the middle leaves nothing behind and
another starts over at the next ring. A reader that was overtaken finds its epoch gone and rolls
back.
"""

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from sqlalchemy import ColumnElement, delete, func, insert, or_, select, text, update
from sqlalchemy.orm import Session

from runner.config import Settings
from runner.db.clock import seconds_from_now
from runner.db.copy import copy_rows
from runner.db.models import File, Job, JobError, Result, Shard, WorkItem
from runner.db.outages import outage_of
from runner.db.session import OUTAGES, SessionFactory
from runner.domain.answers import error_body, refusal_line
from runner.domain.defaults import Defaults
from runner.domain.errors import IngestLost, NotFound, StorageFull
from runner.domain.ids import ModelId, item_id
from runner.domain.intake import Accepted, Intake, LineFault, Refused
from runner.domain.lines import LineError, RawLine, split_lines
from runner.domain.reuse import Dedupe
from runner.domain.rings import Bell
from runner.domain.states import JobState
from runner.doorbell import ring
from runner.failpoints import FailPoint, hit
from runner.services.closing import close_if_drained
from runner.services.copy_plans import plan_copies
from runner.services.files import read_file
from runner.services.job_estimates import begin_estimates
from runner.services.job_models import sole_model, write_shards
from runner.services.jobs import announce_end
from runner.services.models import get_model

_FLUSH_LINES = 5_000
_MOST_READS = 20  # a file that ended this many readers is not read again
_READING_LOCK = 7_461_032  # the class of our advisory locks on jobs
_ITEM_COLUMNS = ("job_id", "idx", "custom_id", "byte_offset", "byte_length")
_RESULT_COLUMNS = ("job_id", "idx", "failed", "epoch", "line")


def run_ingest(sessions: SessionFactory, settings: Settings, job_id: UUID) -> bool:
    """Read a job's file and start the job, or fail it with every fault named.

    Returns False when there was nothing to do: the job is past validating, was cancelled
    meanwhile, or another worker reads it.
    """
    job: Job | None = None
    try:
        with sessions.begin() as session:
            if not _is_alone(session, job_id):
                return False
            job = _take(sessions, settings, job_id)
            if job is None:
                return False
            hit(FailPoint.INGEST_BEFORE_COPY)
            _Ingest(sessions, session, settings, job).run()
            hit(FailPoint.INGEST_BEFORE_COMMIT)
    except IngestLost:
        return False
    except OUTAGES as error:
        if job is not None and isinstance(outage_of(error), StorageFull):
            _forgive(sessions, job)
        raise
    hit(FailPoint.INGEST_AFTER_COMMIT)
    with sessions.begin() as session:
        close_if_drained(session, job_id)
    return True


def _is_alone(session: Session, job_id: UUID) -> bool:
    """Hold the job's reading lock until this transaction ends.

    It goes with its connection, so the reader after a killed one need not wait for a lease to
    lapse. A reader that still has the connection but has not renewed its lease is stuck: it is
    cut off, and the next ring finds the lock free.
    """
    place = {"kind": _READING_LOCK, "job": int.from_bytes(job_id.bytes[-4:], signed=True)}
    if session.scalar(text("SELECT pg_try_advisory_xact_lock(:kind, :job)"), place):
        return True
    overdue = select(Job.id).where(Job.id == job_id, Job.ingest_expires_at < func.now())
    if session.scalar(overdue) is not None:
        session.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                " AND granted AND classid = :kind AND objid = CAST(:job AS bigint) & 4294967295"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            ),
            place,
        )
    return False


def _take(sessions: SessionFactory, settings: Settings, job_id: UUID) -> Job | None:
    """Note that this process reads; ``ingest_epoch`` fences off whoever read before."""
    with sessions.begin() as session:
        return session.scalars(
            update(Job)
            .where(Job.id == job_id, Job.state == JobState.VALIDATING)
            .values(
                ingest_epoch=Job.ingest_epoch + 1,
                ingest_expires_at=seconds_from_now(settings.lease_seconds),
            )
            .returning(Job)
        ).one_or_none()


def _forgive(sessions: SessionFactory, job: Job) -> None:
    """Take a read back that a full disk ended: the file is not at fault.

    The number may be used again: who had it reads no more, and nobody has a later one.
    """
    with suppress(*OUTAGES), sessions.begin() as session:
        session.execute(
            update(Job)
            .where(
                Job.id == job.id,
                Job.state == JobState.VALIDATING,
                Job.ingest_epoch == job.ingest_epoch,
            )
            .values(ingest_epoch=Job.ingest_epoch - 1, ingest_expires_at=None)
        )


@dataclass(slots=True)
class _Buffer:
    """Rows on their way into COPY."""

    items: list[tuple[UUID, int, str, int, int]]
    results: list[tuple[UUID, int, bool, int, bytes]]

    def __len__(self) -> int:
        return len(self.items) + len(self.results)


class _Ingest:
    """One pass over one file, inside the caller's transaction."""

    def __init__(
        self, sessions: SessionFactory, session: Session, settings: Settings, job: Job
    ) -> None:
        self._sessions = sessions
        self._session = session
        self._settings = settings
        self._job = job
        self._skips = job.on_invalid == "skip"
        self._intake = Intake(
            job.endpoint,
            settings.max_line_bytes,
            self._find_model,
            Defaults(job.defaults),
            seeks_equals=job.dedupe != Dedupe.OFF,
        )
        self._buffer = _Buffer([], [])
        self._renew_at = time.monotonic() + settings.heartbeat_seconds

    def run(self) -> None:
        """Read everything, then start the job or fail it."""
        try:
            for line in self._lines():
                self._read(line)
            self._flush()
            self._refuse_duplicates()
            if self._intake.total == 0:
                raise LineError("empty_file", "The file has no line to run.")
        except LineError as fault:  # of the file as such: nothing of it runs
            self._intake.add_fault(fault)
            self._fail()
            return
        if self._intake.faults and not self._skips:
            self._fail()
        else:
            self._start()

    def _lines(self) -> Iterator[RawLine]:
        self._check_file()
        pieces = read_file(self._sessions, self._job.input_file_id)
        for line in split_lines(pieces, self._settings.max_line_bytes):
            if self._intake.total == self._settings.max_job_lines:
                most = self._settings.max_job_lines
                raise LineError("too_many_tasks", f"The file has more than {most:,} lines.")
            yield line

    def _check_file(self) -> None:
        if self._job.ingest_epoch > _MOST_READS:
            raise LineError("internal_error", "The file could not be read; ask the operator.")
        usable = select(File.id).where(
            File.id == self._job.input_file_id,
            File.deleted_at.is_(None),
            or_(File.expires_at.is_(None), File.expires_at > func.now()),
        )
        if self._session.scalar(usable) is None:
            raise LineError("file_not_found", "The input file was deleted or has expired.")

    def _find_model(self, name: str) -> ModelId | None:
        try:
            return get_model(self._session, name).id
        except NotFound:
            return None

    def _read(self, line: RawLine) -> None:
        match self._intake.read(line):
            case Accepted(idx, custom_id, offset, length, _):
                self._buffer.items.append((self._job.id, idx, custom_id, offset, length))
            case Refused(idx, custom_id, fault):
                self._buffer.results.append(self._refusal(idx, custom_id, fault))
        if len(self._buffer) >= _FLUSH_LINES:
            self._flush()
        self._beat()

    def _refusal(
        self, idx: int, custom_id: str | None, fault: LineFault
    ) -> tuple[UUID, int, bool, int, bytes]:
        """The answer that a faulty line gets at once under ``skip``."""
        error = error_body(400, fault.message, fault.code, fault.param)
        line = refusal_line(item_id(self._job.id, idx), custom_id, 400, error)
        return (self._job.id, idx, True, 0, line)

    def _flush(self) -> None:
        """Write what has been collected, unless the file is going to fail anyway."""
        if self._skips or not self._intake.faults:
            copy_rows(self._session, "work_items", _ITEM_COLUMNS, self._buffer.items)
            hit(FailPoint.INGEST_MID_COPY)
            copy_rows(self._session, "results", _RESULT_COLUMNS, self._buffer.results)
        self._buffer = _Buffer([], [])

    def _beat(self) -> None:
        if time.monotonic() >= self._renew_at:
            self._renew()

    def _renew(self) -> None:
        """Tell, in a transaction of its own, that the reading goes on."""
        renewal = (
            update(Job)
            .where(*self._is_mine())
            .values(ingest_expires_at=seconds_from_now(self._settings.lease_seconds))
            .returning(Job.id)
        )
        with self._sessions.begin() as session:
            if session.scalar(renewal) is None:
                raise IngestLost("The job was cancelled or taken over while its file was read.")
        self._renew_at = time.monotonic() + self._settings.heartbeat_seconds

    def _is_mine(self) -> tuple[ColumnElement[bool], ...]:
        return (
            Job.id == self._job.id,
            Job.state == JobState.VALIDATING,
            Job.ingest_epoch == self._job.ingest_epoch,
        )

    def _refuse_duplicates(self) -> None:
        """Turn repeated custom ids into refusals; they are known only once all is read."""
        duplicates = self._intake.duplicates()
        while batch := dict(islice(duplicates, _FLUSH_LINES)):
            if self._skips:
                self._replace_by_refusals(batch)

    def _replace_by_refusals(self, faults: dict[int, LineFault]) -> None:
        removed = self._session.execute(
            delete(WorkItem)
            .where(WorkItem.job_id == self._job.id, WorkItem.idx.in_(faults))
            .returning(WorkItem.idx, WorkItem.custom_id)
        ).all()
        refusals = [self._refusal(row.idx, row.custom_id, faults[row.idx]) for row in removed]
        copy_rows(self._session, "results", _RESULT_COLUMNS, refusals)

    def _start(self) -> None:
        intake, job_id = self._intake, self._job.id
        copies = self._plan_copies()
        shards = list(intake.shards(self._settings.shard_lines, copies))
        models = write_shards(self._session, job_id, self._job.created_at, shards)
        self._leave_validating(
            state=JobState.IN_PROGRESS,
            in_progress_at=func.now(),
            model_id=sole_model(models),
            total_items=intake.total,
            invalid_items=intake.fault_count,
        )
        if models:
            sketches = {model_id: lines.sketch for model_id, lines in intake.models.items()}
            begin_estimates(self._session, job_id, models, sketches)
        if copies:
            ring(self._session, Bell.COPY, job_id)
        ring(self._session, Bell.WAKE)

    def _plan_copies(self) -> Collection[int]:
        """The lines that take the answers of others, by ``idx``."""
        if self._job.dedupe == Dedupe.OFF:
            return ()
        equals = self._intake.equals()
        return plan_copies(self._session, self._settings, self._job, equals, self._beat)

    def _fail(self) -> None:
        for table in (WorkItem, Shard, Result):
            self._session.execute(delete(table).where(table.job_id == self._job.id))
        self._leave_validating(
            state=JobState.FAILED,
            failed_at=func.now(),
            total_items=0,
            output_lines=0,
            error_lines=0,
        )
        announce_end(self._session, self._job, JobState.FAILED)

    def _leave_validating(self, **values: object) -> None:
        done = self._session.scalar(
            update(Job)
            .where(*self._is_mine())
            .values(error_count=self._intake.fault_count, ingest_expires_at=None, **values)
            .returning(Job.id)
        )
        if done is None:
            raise IngestLost("The job was cancelled or taken over while its file was read.")
        errors = [
            {
                "job_id": self._job.id,
                "error_no": number,
                "code": fault.code,
                "message": fault.message,
                "line": fault.line,
                "param": fault.param,
            }
            for number, fault in enumerate(self._intake.faults)
        ]
        if errors:
            self._session.execute(insert(JobError), errors)
