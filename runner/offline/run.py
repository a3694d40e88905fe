"""One run from its file to its answers: put together here, watched by whoever opened it."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from runner.config import Settings, child_environment
from runner.db import migrate
from runner.db.session import SessionFactory, create_session_factory
from runner.domain.errors import InvalidRequest
from runner.domain.rings import Ring
from runner.doorbell import connect_doorbell
from runner.embedded import ServiceUrls
from runner.offline.answers import row_answers
from runner.offline.clerk import Clerk
from runner.offline.engine_process import EngineProcess
from runner.offline.model import name_of, open_model
from runner.offline.output import write_lines, write_table
from runner.offline.place import NO_BROKER, Order, Place, sha256_of
from runner.offline.requests import PromptOptions, Requests, Rows, open_requests
from runner.services import contents, files, jobs, projects, workers
from runner.services.job_accounts import LaneUse, lane_uses
from runner.services.job_records import JobRecord
from runner.services.keys import Caller
from runner.services.models import PriceList, list_models, register_model

_PROJECT = "run"
_STOP_SECONDS = 10.0  # beyond the grace time


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run is asked to do. ``source`` and ``model`` as on the command line."""

    source: Path
    output: Path
    errors: Path | None
    model: str
    prompts: PromptOptions
    skip_invalid: bool = False

    def order(self) -> Order:
        """The part of it that a later call must repeat to go on with the run."""
        options = {**asdict(self.prompts), "skip_invalid": self.skip_invalid}
        return Order(sha256_of(self.source), self.output.name, self.model, options)

    def requests(self, max_line_bytes: int) -> Requests:
        """The lines of the job."""
        return open_requests(self.source, self.prompts, name_of(self.model), max_line_bytes)


class Refused(InvalidRequest):
    """The file or the model was refused, and nothing was begun."""


class Run:
    """A run at work."""

    def __init__(self, options: RunOptions, sessions: SessionFactory, job: JobRecord) -> None:
        self._options = options
        self._sessions = sessions
        self._job = job
        self.clerk: Clerk | None = None

    def look(self) -> JobRecord:
        """Where the job is; while the database is being started again, where it was.

        Raises:
            EngineFailed: it will not come any further.
        """
        if self.clerk is not None:
            self.clerk.check()
        with suppress(OperationalError), self._sessions() as session:
            self._job = jobs.get_job(session, self._job.project_id, self._job.id)
        return self._job

    def lanes(self) -> tuple[LaneUse, ...]:
        """How the lines that are answered were computed."""
        with self._sessions() as session:
            return lane_uses(session, self._job.id)

    def write(self, requests: Requests) -> None:
        """Write the files of a job that has completed."""
        options = self._options
        if isinstance(requests.source, Rows):
            answers = row_answers(self._sessions, self._job.id)
            write_table(options.output, requests.source.table, answers)
        else:
            write_lines(options.output, self._view(contents.OUTPUT))
        errors = options.errors
        if errors is not None and write_lines(errors, self._view(contents.ERROR)) == 0:
            errors.unlink()  # as with a batch: no error, no file

    def _view(self, view: str) -> Iterator[bytes]:
        return contents.read_view(self._sessions, self._job.id, view)


@contextmanager
def at_work(
    options: RunOptions, requests: Requests, place: Place, settings: Settings, home: Settings
) -> Iterator[Run]:
    """A run with all it needs, begun or gone on with; stopped in order at the end.

    ``settings`` are those of the place, ``home`` those of the installation that knows models.

    Raises:
        Refused: the model or the file is refused; the place has no use any more.
    """
    with ExitStack() as stack:
        services = place.services()
        urls = stack.enter_context(services)
        migrate.upgrade(urls.database_url)
        sessions = create_session_factory(urls.database_url)
        stack.callback(sessions.kw["bind"].dispose)
        try:
            job = _begin(options, requests, settings, home, sessions)
        except InvalidRequest as error:
            raise Refused(error.message, code=error.code, param=error.param) from error
        run = Run(options, sessions, job)
        if not job.state.is_terminal:
            engine = _engine(requests.model_name, place, settings, urls, run)
            run.clerk = Clerk(settings, sessions, services, engine, job)
            connect_doorbell(sessions, run.clerk.hear)
            stack.callback(engine.stop, settings.grace_seconds + _STOP_SECONDS)
            engine.start()
            stack.callback(run.clerk.stop)
            run.clerk.start()
        yield run


def _begin(
    options: RunOptions,
    requests: Requests,
    settings: Settings,
    home: Settings,
    sessions: SessionFactory,
) -> JobRecord:
    """The job of this place; made with its file and model if the run is new."""
    with sessions.begin() as session:
        caller = Caller(projects.ensure_project(session, _PROJECT))
        # We are alone here, so whoever is on record as living was killed with an earlier run.
        workers.bury_silent(session, 0.0)
        known = jobs.list_jobs(session, caller.project_id, None, 1).items
        for job in known:
            jobs.postpone_expiry(session, job.id)
            return job
        has_model = bool(list_models(session))
    if not has_model:
        model = open_model(settings, home, options.model, requests.model_name)
        with sessions.begin() as session:
            register_model(session, model, PriceList())
    with sessions.begin() as session:
        upload = files.Upload(options.source.name, requests.lines())
        stored = files.create_file(session, caller.project_id, upload, settings.max_file_bytes)
        is_table = isinstance(requests.source, Rows)
        new = jobs.NewJob(
            input_file_id=stored.id,
            endpoint=requests.endpoint,
            completion_window="24h",
            request_sha256=hashlib.sha256(stored.id.bytes).digest(),
            on_invalid="skip" if options.skip_invalid or is_table else "fail",
        )
        return jobs.create_job(session, caller, new)


def _engine(
    model_name: str, place: Place, settings: Settings, urls: ServiceUrls, run: Run
) -> EngineProcess:
    def on_ring(ring: Ring) -> None:
        if run.clerk is not None:
            run.clerk.hear(ring)

    return EngineProcess(
        model_name,
        child_environment(settings, urls.database_url, NO_BROKER),
        place.lock,
        place.folder / "logs" / "engine.log",
        on_ring,
    )


def summary_of(options: RunOptions, job: JobRecord, lanes: Sequence[LaneUse]) -> dict[str, Any]:
    """What is told of a run at its end; money in nano-units, times in seconds."""
    totals = job.totals
    ended, began = job.completed_at, job.in_progress_at
    return {
        "state": job.state.value,
        "model": job.model,
        "lines": job.total,
        **asdict(totals),
        "seconds": (ended - began).total_seconds() if ended and began else None,
        "lanes": [{**asdict(use.lane), "lines": use.lines} for use in lanes],
        "output": str(options.output),
        "errors": str(options.errors) if options.errors and totals.failed else None,
    }
