"""A project with a model on a database of its own, and the moves that tests make there."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from sqlalchemy import Executable, Row, func, select, text, update

from runner.config import Settings
from runner.db.models import File, FileChunk, Job, Result, Shard, Usage, Worker
from runner.db.session import SessionFactory
from runner.domain.ids import FileId, JobId, ModelId, WorkerId
from runner.domain.lanes import Lane
from runner.domain.leases import FinishedItem, ItemInput, Lease
from runner.domain.rings import Ring
from runner.domain.states import JobState, ShardState
from runner.doorbell import connect_doorbell
from runner.inference.backend import LineRefusal
from runner.inference.stub import StubBackend
from runner.services import files, jobs, keys, leases, models, reconcile, workers
from runner.services.closing import close_if_drained, close_job
from runner.services.contents import open_content, read_view
from runner.services.ingest import run_ingest
from runner.services.items import read_items
from runner.services.job_records import JobRecord
from runner.services.jobs import NewJob
from runner.services.results import CommitOutcome, commit_results
from runner.worker.lines import finished_outcome, finished_refusal

CHAT = "/v1/chat/completions"
MODEL = "org/stub"
_FREE = models.PriceList()


def make_item(custom_id: str, content: object = "Tell me a tale.", **body: object) -> bytes:
    """One line of a chat job, without its newline."""
    fields = {"model": MODEL, "messages": [{"role": "user", "content": content}], **body}
    line = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": fields}
    return json.dumps(line).encode()


def make_items(count: int, start: int = 0) -> list[bytes]:
    """Lines that all differ."""
    return [make_item(f"line-{n}", f"Tale number {n}.") for n in range(start, start + count)]


def joined(lines: Sequence[bytes]) -> bytes:
    """Lines as a file."""
    return b"".join(line + b"\n" for line in lines)


def answers(lease: Lease, items: Iterable[ItemInput]) -> list[FinishedItem]:
    """What the stub says to each line of a lease."""
    backend = StubBackend()
    finished = []
    for item in items:
        try:
            backend.submit(backend.prepare(lease, item))
        except LineRefusal as refusal:
            finished.append(finished_refusal(lease, item, refusal))
    while backend.unfinished:
        finished += [finished_outcome(outcome) for outcome in backend.step()]
    return finished


class Workshop:
    """Services with their arguments filled in; every method is a transaction of its own."""

    def __init__(self, sessions: SessionFactory, settings: Settings, path: str = "stub:") -> None:
        self.sessions = sessions
        self.settings = settings
        self.rings: list[Ring] = []
        self.listeners: list[Callable[[Ring], None]] = [self.rings.append]
        connect_doorbell(sessions, self._ring)
        self.caller = self.make_caller("house")
        self.model = self.make_model(MODEL, path)

    def _ring(self, ring: Ring) -> None:
        for listener in self.listeners:
            listener(ring)

    def make_caller(self, project: str) -> keys.Caller:
        with self.sessions.begin() as session:
            secret = keys.create_key(session, project)[1]
            return keys.authenticate(session, secret)

    def make_model(
        self, name: str, path: str = "stub:", prices: models.PriceList = _FREE
    ) -> models.ModelRecord:
        with self.sessions.begin() as session:
            new = models.NewModel(name=name, path=path, context_length=1024, manifest={})
            return models.register_model(session, new, prices)

    def make_file(
        self, lines: bytes | Sequence[bytes], caller: keys.Caller | None = None
    ) -> FileId:
        data = lines if isinstance(lines, bytes) else joined(lines)
        project = (caller or self.caller).project_id
        with self.sessions.begin() as session:
            upload = files.Upload("lines.jsonl", [data] if data else [])
            return files.create_file(session, project, upload, 1 << 40).id

    def make_job(
        self,
        lines: int | bytes | Sequence[bytes] = 3,
        *,
        ingested: bool = True,
        caller: keys.Caller | None = None,
        **fields: object,
    ) -> JobId:
        caller = caller or self.caller
        if isinstance(lines, int):
            lines = make_items(lines)
        new = NewJob(
            input_file_id=fields.pop("input_file_id", None) or self.make_file(lines, caller),
            endpoint=CHAT,
            completion_window="24h",
            request_sha256=b"\0" * 32,
        )
        with self.sessions.begin() as session:
            job_id = jobs.create_job(session, caller, replace(new, **fields)).id
        if ingested:
            assert self.ingest(job_id)
        return job_id

    def ingest(self, job_id: UUID) -> bool:
        return run_ingest(self.sessions, self.settings, job_id)

    def job(self, job_id: UUID) -> JobRecord:
        with self.sessions() as session:
            project_id = session.get_one(Job, job_id).project_id
            return jobs.get_job(session, project_id, job_id)

    def cancel(self, job_id: UUID) -> JobRecord:
        with self.sessions.begin() as session:
            return jobs.cancel_job(session, self.caller.project_id, job_id)

    def make_worker(
        self,
        pid: int = 1,
        rows: int = 8,
        host: str = "here",
        model: models.ModelRecord | None = None,
    ) -> WorkerId:
        with self.sessions.begin() as session:
            new = workers.NewWorker("engine", host, pid, (model or self.model).id)
            worker_id = workers.register_worker(session, new)
        with self.sessions.begin() as session:
            workers.mark_ready(session, worker_id, "a worker of a test", rows, Lane("stub"))
        return worker_id

    def claim(
        self,
        worker_id: WorkerId,
        shards: int = 1,
        *,
        holds: bool = False,
        lease_seconds: float = 60.0,
    ) -> list[Lease]:
        with self.sessions.begin() as session:
            model_id = session.get_one(Worker, worker_id).model_id
            assert model_id is not None
            claim = leases.Claim(worker_id, ModelId(model_id), shards, lease_seconds, holds)
            return leases.claim_shards(session, claim)

    def read(self, lease: Lease) -> list[ItemInput]:
        with self.sessions() as session:
            return read_items(session, lease)

    def answer(self, lease: Lease) -> list[FinishedItem]:
        """What the stub says to the unfinished lines of a lease."""
        return answers(lease, self.read(lease))

    def commit(self, worker_id: WorkerId, pack: Sequence[FinishedItem]) -> CommitOutcome:
        with self.sessions.begin() as session:
            outcome = commit_results(session, worker_id, pack)
        for job_id in {key.job_id for key in outcome.done}:
            with self.sessions.begin() as session:
                close_if_drained(session, job_id)
        return outcome

    def run(self, worker_id: WorkerId, leases: Iterable[Lease]) -> None:
        """Do all the work of some leases."""
        for lease in leases:
            outcome = self.commit(worker_id, self.answer(lease))
            assert not outcome.stale

    def give_back(self, worker_id: WorkerId, *held: Lease) -> None:
        with self.sessions.begin() as session:
            leases.give_back(session, worker_id, [lease.key for lease in held])

    def drain(
        self,
        worker_id: WorkerId | None = None,
        note: Callable[[list[FinishedItem]], None] = lambda _: None,
    ) -> None:
        """Run everything that waits and close what has ended."""
        worker_id = worker_id or self.make_worker()
        while held := self.claim(worker_id, shards=100):
            for lease in held:
                pack = self.answer(lease)
                note(pack)
                assert not self.commit(worker_id, pack).stale
        self.close_all()

    def close(self, job_id: UUID) -> bool:
        with self.sessions.begin() as session:
            return close_job(session, job_id)

    def close_all(self) -> None:
        """What the FINALISE rings would bring about."""
        with self.sessions() as session:
            states = (JobState.FINALIZING, JobState.CANCELLING)
            ending = session.scalars(select(Job.id).where(Job.state.in_(states))).all()
        for job_id in ending:
            self.close(job_id)

    def tick(self) -> None:
        reconcile.reconcile(self.sessions, self.settings)

    def keep_house(self) -> None:
        reconcile.keep_house(self.sessions)

    def report_dead(self, pid: int, host: str = "here") -> int:
        with self.sessions.begin() as session:
            return workers.report_dead(session, host, pid)

    def lapse(self, worker_id: UUID | None = None) -> None:
        """Let leases have ended a second ago, as if their worker had been stopped for long."""
        mine = Shard.worker_id == worker_id if worker_id else Shard.worker_id.is_not(None)
        self.execute(
            update(Shard)
            .where(mine, Shard.state == ShardState.LEASED)
            .values(lease_expires_at=func.now() - text("interval '1 second'"))
        )

    def execute(self, statement: Executable) -> None:
        with self.sessions.begin() as session:
            session.execute(statement)

    def scalar(self, query: Executable) -> object:
        with self.sessions() as session:
            return session.scalar(query)

    def rows(self, query: Executable) -> Sequence[Row[Any]]:
        with self.sessions() as session:
            return session.execute(query).all()

    def shards(self, job_id: UUID) -> Sequence[Shard]:
        with self.sessions() as session:
            query = select(Shard).where(Shard.job_id == job_id).order_by(Shard.shard_no)
            return session.scalars(query).all()

    def worker(self, worker_id: UUID) -> Worker:
        with self.sessions() as session:
            return session.get_one(Worker, worker_id)

    def results(self, job_id: UUID) -> dict[int, Result]:
        with self.sessions() as session:
            found = session.scalars(select(Result).where(Result.job_id == job_id))
            return {row.idx: row for row in found}

    def usage(self, job_id: UUID) -> dict[int, Usage]:
        with self.sessions() as session:
            found = session.scalars(select(Usage).where(Usage.job_id == job_id))
            return {row.idx: row for row in found}

    def chunks(self, file_id: UUID) -> object:
        query = select(func.count()).select_from(FileChunk).where(FileChunk.file_id == file_id)
        return self.scalar(query)

    def snapshot(self, job_id: UUID, view: str) -> bytes:
        return b"".join(read_view(self.sessions, job_id, view))

    def content(self, file_id: UUID | None, start: int = 0, stop: int | None = None) -> bytes:
        assert file_id is not None
        with self.sessions() as session:
            file = files.record_of(session.get_one(File, file_id))
        return b"".join(open_content(self.sessions, file, start, stop))

    def parsed(self, job_id: UUID, view: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.snapshot(job_id, view).split(b"\n")[:-1]]

    def errors(self, job_id: UUID) -> Iterator[tuple[str, str | None]]:
        """The custom id and error code of each line of the error view."""
        for line in self.parsed(job_id, "error"):
            error = line["error"] or line["response"]["body"]["error"]
            yield line["custom_id"], error["code"]
