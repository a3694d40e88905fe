"""The life of two jobs in steps, acted by a process that may be told to crash in any of them.

One job runs to its end: its file comes in chunks, a schedule makes it and writes its output to a
folder, a line of it is refused, a shard of it loses three workers. The other comes in parts, is
cancelled when half of a shard is done and a line has taken the answer of an equal one, and is given
back. Each step may be begun again by a new
process after a crash, as a client tries again, a doorbell rings again, and a
supervisor starts again what died.
"""

import multiprocessing
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID

from flask.testing import FlaskClient
from installation import chat_line
from sqlalchemy import func, select, update
from workshop import answers

from runner.celery_app import create_celery
from runner.config import Settings, arm_failpoints
from runner.db import migrate
from runner.db.models import (
    Job,
    JobEstimate,
    Model,
    Result,
    Schedule,
    ScheduleRun,
    Shard,
    ShardCount,
    Worker,
)
from runner.db.session import create_session_factory
from runner.domain.errors import StateConflict
from runner.domain.ids import FILE_PREFIX, JOB_PREFIX, FileId, ModelId, WorkerId, decode, encode
from runner.domain.lanes import Lane
from runner.domain.leases import Lease
from runner.domain.states import LIVE_WORKER_STATES, PENDING_SHARD_STATES, JobState, ShardState
from runner.doorbell import connect_doorbell
from runner.embedded import ServiceUrls
from runner.inference import open_counter
from runner.ringer import Ringer
from runner.runtime import Runtime
from runner.services import keys, leases, models, schedules, workers
from runner.services.closing import close_job
from runner.services.copies import run_copies
from runner.services.counting import run_count
from runner.services.ingest import run_ingest
from runner.services.items import read_items
from runner.services.reconcile import keep_house, reconcile
from runner.services.results import commit_results
from runner.services.run_outputs import write_outputs
from runner.services.run_starts import start_runs
from runner.services.schedule_records import Terms
from runner.services.schedules import Keeper
from runner.services.shard_counts import total_count
from runner.supervisor.launch import report_dead
from runner.worker.engine_worker import EngineWorker
from web import create_app

Memory = dict[str, Any]
BOUNDARY = "a-boundary-of-tests"
PATIENCE = 120.0
FORKED = multiprocessing.get_context("forkserver")
# Loaded before a process is forked, so that one of ours starts in milliseconds.
FORKED.set_forkserver_preload(
    ["openai", "web", "runner.supervisor.launch", "runner.worker.engine_worker"]
)


@dataclass(frozen=True)
class Stage:
    """Where a scenario is played: a database, a folder, and a name that nobody else uses."""

    database_url: str
    folder: Path
    name: str

    @property
    def lines(self) -> bytes:
        """Eight lines and a faulty one; the file fills more than one chunk."""
        good = [chat_line(f"line-{n}", self.name, f"Tale number {n}.") for n in range(7)]
        return b"".join([*good[:3], b"{}\n", *good[3:], self._long_line()])

    @property
    def output(self) -> Path:
        """Where the output of the job that is completed goes."""
        return self.folder / f"{self.name}.jsonl"

    @property
    def halves(self) -> tuple[bytes, bytes]:
        """The two parts of the file of the job that is cancelled; a line lies across them, and the
        last is equal to the first."""
        texts = enumerate(("Part 0.", "Part 1.", "Part 2.", "Part 0."))
        lines = b"".join(
            chat_line(f"part-{n}", self.name, text, temperature=0) for n, text in texts
        )
        return lines[:200], lines[200:]

    def _long_line(self) -> bytes:
        return chat_line("line-long", self.name, "long " * 220_000, max_tokens=2)


@dataclass
class Story:
    """What came of a scenario: what its processes learned, and the steps in which one crashed."""

    memory: Memory = field(default_factory=dict)
    crashes: list[tuple[str, int | None]] = field(default_factory=list)


def play(stage: Stage, plan: str, between: Callable[[], None] = lambda: None) -> Story:
    """Act all steps; only the first process heeds the plan. ``between`` sees every process end."""
    story, done = Story(), 0
    while done < len(STEPS):
        receiver, sender = FORKED.Pipe(duplex=False)
        orders = plan if not story.crashes else ""
        process = FORKED.Process(
            target=act, args=(stage, orders, done, story.memory, sender), daemon=True
        )
        process.start()
        sender.close()
        done += _listen(receiver, story.memory)
        process.join(PATIENCE)
        between()
        if process.exitcode != 0:
            story.crashes.append((STEPS[done].__name__, process.exitcode))
            assert len(story.crashes) == 1, story.crashes
    return story


def _listen(receiver: Connection, memory: Memory) -> int:
    """Hear of each step that is done, until the process ends; returns how many there were."""
    count = 0
    with receiver:
        while receiver.poll(PATIENCE):
            try:
                memory.update(receiver.recv())
            except EOFError:
                break
            count += 1
    return count


def act(stage: Stage, plan: str, first: int, memory: Memory, sender: Connection) -> None:
    """What one process does: the steps from ``first`` on, each told when it is done."""
    actor = Actor(stage, plan, memory)
    for step in STEPS[first:]:
        learned = step(actor)
        actor.memory.update(learned)
        sender.send(learned)


class Actor:
    """One process with its connections; it remembers what earlier ones learned."""

    def __init__(self, stage: Stage, plan: str, memory: Memory) -> None:
        self.stage, self.memory = stage, memory
        self.urls = ServiceUrls(stage.database_url, "memory://")
        self.settings = Settings(
            data_dir=stage.folder,
            shard_lines=2,
            places=(str(stage.folder),),
            failpoints=plan,
        )
        arm_failpoints(self.settings)
        self.sessions = create_session_factory(stage.database_url)
        ringer = Ringer(lambda ring: None)  # every message is lost
        connect_doorbell(self.sessions, ringer.ring)
        celery = create_celery(self.urls.broker_url)
        runtime = Runtime(self.settings, self.urls, self.sessions, celery, ringer, keeps_data=False)
        self.app = create_app(runtime)

    def post(self, path: str, **options: Any) -> Memory:  # noqa: ANN401
        """Ask as a client does."""
        headers = {"Authorization": f"Bearer {self.memory['key']}", **options.pop("headers", {})}
        client: FlaskClient = self.app.test_client()
        answer = client.post(f"/v1/{path}", headers=headers, **options)
        assert answer.status_code == 200, answer.text
        told: Memory = answer.get_json()
        return told

    def create(self, file_id: str, **fields: object) -> UUID:
        """Make a job once, however often it is asked for."""
        body = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **fields}
        headers = {"Idempotency-Key": f"{self.stage.name} {file_id}"}
        told = self.post("batches", json={**body, "input_file_id": file_id}, headers=headers)
        job_id = decode(JOB_PREFIX, told["id"])
        assert job_id is not None
        return job_id

    @property
    def model_id(self) -> ModelId:
        with self.sessions() as session:
            return ModelId(
                session.scalars(select(Model.id).where(Model.name == self.stage.name)).one()
            )

    def lease(self, shards: int = 1) -> tuple[int, WorkerId, list[Lease]]:
        """A worker, told by a pid that no process has, that takes some shards."""
        model_id = self.model_id
        with self.sessions.begin() as session:
            query = select(Worker.pid).where(Worker.model_id == model_id)
            pid = 1 << 23 | len(session.scalars(query).all())
            new = workers.NewWorker("engine", socket.gethostname(), pid, model_id)
            worker_id = workers.register_worker(session, new)
        with self.sessions.begin() as session:
            workers.mark_ready(session, worker_id, "a worker of a test", 8, Lane("stub"))
        claim = leases.Claim(worker_id, model_id, shards, 60.0, holds=False)
        with self.sessions.begin() as session:
            return pid, worker_id, leases.claim_shards(session, claim)

    def leave(self) -> None:
        """Give back connections."""
        self.sessions.kw["bind"].dispose()

    def bury_all(self) -> None:
        """The workers of earlier processes are gone, and their supervisor says so."""
        with self.sessions() as session:
            alive = (Worker.model_id == self.model_id, Worker.state.in_(LIVE_WORKER_STATES))
            pids = session.scalars(select(Worker.pid).where(*alive)).all()
        for pid in pids:
            assert report_dead(self.urls, pid)

    def state_of(self, job_id: UUID) -> str:
        with self.sessions() as session:
            return session.get_one(Job, job_id).state

    def has_shards(self, job_id: UUID, *states: ShardState) -> bool:
        query = select(Shard.shard_no).where(Shard.job_id == job_id, Shard.state.in_(states))
        with self.sessions() as session:
            return session.scalar(query.limit(1)) is not None


def prepare(actor: Actor) -> Memory:
    """The schema, a project with a key, and a model."""
    migrate.upgrade(actor.stage.database_url)
    with actor.sessions.begin() as session:
        new = models.NewModel(actor.stage.name, "stub:?rows=8", 1 << 20, manifest={})
        models.register_model(session, new, models.PriceList())
        return {"key": keys.create_key(session, actor.stage.name)[1]}


def upload(actor: Actor) -> Memory:
    """A file in one request."""
    sent = form(("purpose", b"batch"), ("file", actor.stage.lines))
    told = actor.post("files", headers={"Idempotency-Key": actor.stage.name}, **sent)
    return {"file": told["id"]}


def upload_parts(actor: Actor) -> Memory:
    """A file in two parts, announced and sent."""
    halves = actor.stage.halves
    announced = {"bytes": sum(map(len, halves)), "filename": "a.jsonl", "purpose": "batch"}
    upload_id = actor.post("uploads", json={**announced, "mime_type": "text/jsonl"})["id"]
    sent = [actor.post(f"uploads/{upload_id}/parts", **form(("data", half))) for half in halves]
    return {"upload": upload_id, "parts": [part["id"] for part in sent]}


def join_parts(actor: Actor) -> Memory:
    """Make a file of the parts."""
    body = {"part_ids": actor.memory["parts"]}
    headers = {"x-stainless-retry-count": "1"}  # it may have been done already
    told = actor.post(f"uploads/{actor.memory['upload']}/complete", json=body, headers=headers)
    return {"joined": told["file"]["id"]}


def create_other(actor: Actor) -> Memory:
    """The job that will be cancelled."""
    return {"other": actor.create(actor.memory["joined"], dedupe="job")}


def read_other(actor: Actor) -> Memory:
    run_ingest(actor.sessions, actor.settings, actor.memory["other"])
    return {}


def begin_other(actor: Actor) -> Memory:
    """A worker finishes half of a shard and holds the rest."""
    actor.bury_all()
    _, worker_id, (lease,) = actor.lease()
    with actor.sessions() as session:
        items = read_items(session, lease)
    with actor.sessions() as session:
        done = session.scalar(select(Result.idx).where(Result.job_id == lease.key.job_id))
    if done is None:
        with actor.sessions.begin() as session:
            commit_results(session, worker_id, answers(lease, items)[:1])
    return {"holder": worker_id, "held": lease.key}


def copy_other(actor: Actor) -> Memory:
    """The line that is equal to the finished one takes its answer."""
    run_copies(actor.sessions, actor.memory["other"])
    return {}


def cancel_other(actor: Actor) -> Memory:
    """Cancelled by the client, let go by the worker, and closed."""
    job_id = actor.memory["other"]
    if actor.state_of(job_id) not in (JobState.CANCELLING, JobState.CANCELLED):
        actor.post(f"batches/{encode(JOB_PREFIX, job_id)}/cancel")
    with actor.sessions.begin() as session:
        leases.give_back(session, actor.memory["holder"], [actor.memory["held"]])
    with actor.sessions.begin() as session:
        close_job(session, job_id)
    return {}


def plan(actor: Actor) -> Memory:
    """The schedule of the job that will be completed: its one time of the year is now."""
    file_id = FileId(decode(FILE_PREFIX, actor.memory["file"]) or UUID(int=0))
    with suppress(StateConflict), actor.sessions.begin() as session:
        now = session.scalars(select(func.date_trunc("minute", func.now()))).one()
        cron = f"{now:%M %H %d %m} *"
        terms = Terms(actor.stage.name, cron, "/v1/chat/completions", input_file_id=file_id)
        terms = replace(terms, output_path=str(actor.stage.output), priority=5)
        keeper = Keeper(keys.authenticate(session, actor.memory["key"]), actor.settings.stores)
        made = schedules.create_schedule(session, keeper, terms)
        session.execute(update(Schedule).where(Schedule.id == made.id).values(next_at=now))
    reconcile(actor.sessions, actor.settings)
    return {}


def start(actor: Actor) -> Memory:
    """The job of the planned time."""
    start_runs(actor.sessions, actor.settings)
    runs = select(ScheduleRun.job_id).join(Schedule).where(Schedule.name == actor.stage.name)
    with actor.sessions() as session:
        return {"job": session.scalars(runs).one()}


def read(actor: Actor) -> Memory:
    run_ingest(actor.sessions, actor.settings, actor.memory["job"])
    return {}


def count(actor: Actor) -> Memory:
    """A CPU worker counts the prompts; the leases of one that died have lapsed."""
    job_id = actor.memory["job"]
    with actor.sessions.begin() as session:
        session.execute(update(ShardCount).values(lease_expires_at=None))
    run_count(actor.sessions, actor.settings, open_counter, job_id)
    with actor.sessions() as session:
        assert total_count(session, job_id).lines == 8
        assert (
            session.scalars(select(JobEstimate).where(JobEstimate.job_id == job_id))
            .one()
            .given["is_exact"]
        )
    return {}


def lose_workers(actor: Actor) -> Memory:
    """The first shard loses one worker after the other, until it is halved."""
    actor.bury_all()
    while not actor.has_shards(actor.memory["job"], ShardState.SPLIT):
        pid, _, held = actor.lease()
        assert held
        assert report_dead(actor.urls, pid)
    return {}


def run(actor: Actor) -> Memory:
    """An engine worker does all the work there is; it idles until its process ends."""
    actor.bury_all()
    job_id = actor.memory["job"]
    EngineWorker(actor.settings, actor.sessions, [actor.stage.name], lambda: None).start()
    deadline = time.monotonic() + PATIENCE
    while actor.state_of(job_id) == JobState.IN_PROGRESS:
        assert time.monotonic() < deadline, "the engine worker did not finish"
        if not actor.has_shards(job_id, *PENDING_SHARD_STATES):
            reconcile(actor.sessions, actor.settings)  # whoever should have said so may be dead
        time.sleep(0.05)
    return {}


def tick(actor: Actor) -> Memory:
    reconcile(actor.sessions, actor.settings)
    return {}


def close(actor: Actor) -> Memory:
    with actor.sessions.begin() as session:
        close_job(session, actor.memory["job"])
    return {}


def deliver(actor: Actor) -> Memory:
    """Its output goes to a folder."""
    write_outputs(actor.sessions, actor.settings)
    return {}


def house(actor: Actor) -> Memory:
    keep_house(actor.sessions)
    return {}


def form(*parts: tuple[str, bytes]) -> Memory:
    """A form as the client sends it; everything but ``purpose`` is a file."""
    body = bytearray()
    for name, value in parts:
        filename = "" if name == "purpose" else '; filename="a.jsonl"'
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n\r\n'
        body += head.encode() + value + b"\r\n"
    body += f"--{BOUNDARY}--\r\n".encode()
    return {"data": bytes(body), "content_type": f"multipart/form-data; boundary={BOUNDARY}"}


STEPS: tuple[Callable[[Actor], Memory], ...] = (
    prepare,
    upload,
    upload_parts,
    join_parts,
    create_other,
    read_other,
    begin_other,
    copy_other,
    cancel_other,
    plan,
    start,
    read,
    count,
    lose_workers,
    run,
    tick,
    close,
    deliver,
    house,
)
