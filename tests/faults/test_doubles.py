"""Two of everything at once, a prompt that kills, and a server that dies before it answers."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from installation import chat_line
from ledger import check_files, check_job
from openai import OpenAI
from scenario import FORKED, PATIENCE, Actor, Stage, close, form, prepare, run, tick
from sqlalchemy import func, select
from werkzeug.serving import make_server

from runner.db.models import File, Job, OutboxEvent, Result, Shard, Usage, Worker
from runner.domain.states import LIVE_JOB_STATES
from runner.failpoints import EXIT_STATUS, FailPoint
from runner.services.closing import close_job
from runner.services.contents import ERROR
from runner.services.ingest import run_ingest
from runner.services.reconcile import keep_house, reconcile
from runner.worker.engine_worker import EngineWorker

LEASE_SECONDS, SHORT_SECONDS = 60.0, 2.0
LINES = 48
SLOW = ",".join(
    f"{point}=delay-200:*"
    for point in (
        FailPoint.INGEST_MID_COPY,
        FailPoint.INGEST_BEFORE_COMMIT,
        FailPoint.RESULTS_BEFORE_COMMIT,
        FailPoint.DRAINED_BEFORE_COMMIT,
        FailPoint.CLOSE_BEFORE_TOTALS,
        FailPoint.HOUSE_BETWEEN_CHORES,
    )
)
LATE = f"{FailPoint.CLAIM_AFTER_COMMIT}=delay-{int(1500 * SHORT_SECONDS)}"
POISON = f"{FailPoint.ENGINE_SUBMIT}@POISON=kill:*"


@pytest.fixture
def actor(crash_database: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[Actor]:
    """A client, a project and a model of this test's own."""
    actor = Actor(Stage(crash_database, folder, request.node.name), "", {})
    actor.memory.update(prepare(actor))
    yield actor
    actor.leave()


def submit(actor: Actor, *prompts: str, **fields: object) -> UUID:
    lines = [chat_line(f"line-{n}", actor.stage.name, text) for n, text in enumerate(prompts)]
    file_id = actor.post("files", **form(("purpose", b"batch"), ("file", b"".join(lines))))["id"]
    return actor.create(file_id, **fields)


def do_everything(stage: Stage, plan: str, job_id: UUID, lease_seconds: float) -> None:
    """A beat, a reader, a closer, a keeper of the house and an engine worker in one process.

    The worker's leases may be short; whoever is silent for no longer is not taken for dead. A
    worker with long ones begins when the other has a lease, or it might leave it none.
    """
    actor = Actor(stage, plan, {})
    settings = actor.settings.model_copy(update={"lease_seconds": lease_seconds})
    worker: EngineWorker | None = None
    deadline = time.monotonic() + PATIENCE
    while actor.state_of(job_id) in LIVE_JOB_STATES and time.monotonic() < deadline:
        if worker is None and (lease_seconds == SHORT_SECONDS or has_lease(actor, job_id)):
            worker = EngineWorker(settings, actor.sessions, [stage.name], lambda: None)
            worker.start()
        run_ingest(actor.sessions, actor.settings, job_id)
        reconcile(actor.sessions, actor.settings)
        with actor.sessions.begin() as session:
            close_job(session, job_id)
        keep_house(actor.sessions)


def has_lease(actor: Actor, job_id: UUID) -> bool:
    """Whether a shard of the job has ever been leased."""
    with actor.sessions() as session:
        epochs = select(func.max(Shard.epoch)).where(Shard.job_id == job_id)
        return (session.scalar(epochs) or 0) > 0


def test_of_two_of_everything_at_once_each_effect_happens_once(actor: Actor) -> None:
    """One of the two engine workers dawdles with its first lease until it has lapsed."""
    job_id = submit(actor, *(f"Tale number {n}." for n in range(LINES)))
    both = [
        FORKED.Process(target=do_everything, args=(actor.stage, plan, job_id, lease), daemon=True)
        for plan, lease in ((SLOW, LEASE_SECONDS), (f"{SLOW},{LATE}", SHORT_SECONDS))
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(PATIENCE + 30)
    assert [process.exitcode for process in both] == [0, 0]
    with actor.sessions() as session:
        check_job(session, job_id)
        job = session.get_one(Job, job_id)
        assert (job.state, job.output_lines, job.error_lines) == ("completed", LINES, 0)
        told = select(OutboxEvent.kind).where(OutboxEvent.project_id == job.project_id)
        assert session.scalars(told).all() == ["batch.completed"]
        outputs = select(func.count()).select_from(File).where(File.job_id == job_id)
        assert session.scalar(outputs) == 1
        again = select(func.max(Shard.attempt)).where(Shard.job_id == job_id)
        assert (session.scalar(again) or 0) > 1, "no lease lapsed"
    check_files(actor.sessions, job_id)


def work(stage: Stage, plan: str, job_id: UUID) -> None:
    run(Actor(stage, plan, {"job": job_id}))


def test_a_prompt_that_kills_the_engine_costs_its_line_alone_and_nothing_is_billed_for_it(
    actor: Actor,
) -> None:
    job_id = submit(actor, "one", "two", "a POISON", "four", "five")
    run_ingest(actor.sessions, actor.settings, job_id)
    actor.memory["job"] = job_id
    deaths = 0
    while deaths < 10:
        process = FORKED.Process(target=work, args=(actor.stage, POISON, job_id), daemon=True)
        process.start()
        process.join(PATIENCE)
        if process.exitcode == 0:
            break
        assert process.exitcode == -9
        deaths += 1
        actor.bury_all()
    assert deaths == 5  # twice together, once as a suspect pair, twice alone
    tick(actor)
    close(actor)
    with actor.sessions() as session:
        check_job(session, job_id)
        job = session.get_one(Job, job_id)
        assert (job.state, job.output_lines, job.error_lines) == ("completed", 4, 1)
        failed = select(Result.idx).where(Result.job_id == job_id, Result.failed)
        assert session.scalars(failed).all() == [2]
        billed = select(Usage.idx).where(Usage.job_id == job_id).order_by(Usage.idx)
        assert session.scalars(billed).all() == [0, 1, 3, 4]
        reasons = select(Worker.end_reason).where(Worker.model_id == actor.model_id)
        assert session.scalars(reasons).all().count("exited") >= deaths
    assert b"engine_crash" in check_files(actor.sessions, job_id)[ERROR]


def serve(stage: Stage, plan: str, listening: socket.socket) -> None:
    """The web process of an installation."""
    app = Actor(stage, plan, {}).app
    host, port = listening.getsockname()
    make_server(host, port, app, threaded=True, fd=listening.fileno()).serve_forever()


@pytest.mark.parametrize("header", [{}, {"Idempotency-Key": "nightly"}])
def test_a_create_whose_answer_was_lost_is_tried_again_by_the_client_and_made_once(
    actor: Actor, header: dict[str, str]
) -> None:
    """The server dies after the commit; the official client tries again by itself."""
    form_of_file = form(("purpose", b"batch"), ("file", b"{}\n"))
    file_id = actor.post("files", **form_of_file)["id"]
    plan = f"{FailPoint.ANSWER_AFTER_COMMIT}=exit"
    # Between the two nobody else gets the port, and the client need not knock so often.
    listening = socket.create_server(("127.0.0.1", 0))
    first, second = (
        FORKED.Process(target=serve, args=(actor.stage, orders, listening), daemon=True)
        for orders in (plan, "")
    )

    def start_again() -> None:
        first.join(PATIENCE)
        second.start()

    first.start()
    watch = threading.Thread(target=start_again)
    watch.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    try:
        with OpenAI(base_url=url, api_key=actor.memory["key"], max_retries=9) as client:
            batch = client.batches.create(
                input_file_id=file_id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                extra_headers=header,
            )
            assert [found.id for found in client.batches.list()] == [batch.id]
    finally:
        watch.join()
        second.kill()
        second.join()
        listening.close()
    assert first.exitcode == EXIT_STATUS
