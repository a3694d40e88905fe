"""By hand: a whole installation, and a ``kill -9`` at one fail-point after the other.

``PYTHONPATH=.:tests python tests/faults/campaign.py [ROUNDS [POINT]...]`` prints a line of JSON per
crash: the point, how long the job took beyond an undisturbed one, and how many lines were run
again. A broken invariant ends it. Points of the supervisor, of the start, and of what needs a
suspect are left to the test.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from installation import Server, chat_line, eventually, run_cli, running_server
from ledger import check_files, check_job
from openai import OpenAI
from sqlalchemy import func, select

from runner.config import load_settings
from runner.db.models import Usage
from runner.db.session import SessionFactory
from runner.domain.ids import JOB_PREFIX, decode
from runner.failpoints import FailPoint
from runner.runtime import open_runtime

MODEL = "slow"
LINES = 120
CANCELLED = (
    FailPoint.CANCEL_BEFORE_COMMIT,
    FailPoint.RING_CANCEL,
    FailPoint.GIVE_BACK_BEFORE_COMMIT,
)
ELSEWHERE = (
    FailPoint.DEATH_BEFORE_REPORT,
    FailPoint.DEATH_BEFORE_COMMIT,
    FailPoint.REAP_BEFORE_COMMIT,
    FailPoint.REAP_BETWEEN_HALVES,
    FailPoint.COPIES_BEFORE_COMMIT,
    FailPoint.HOUSE_BETWEEN_CHORES,
    FailPoint.MIGRATE_BEFORE_COMMIT,
    FailPoint.MIGRATE_BEFORE_PARTITIONS,
)
POINTS = [point for point in FailPoint if point not in ELSEWHERE]
SETTINGS = {
    "shard_lines": "16",
    "lease_seconds": "6",
    "failpoints": ",".join(f"{point}=kill:once" for point in POINTS),
}


def submit(client: OpenAI, content: bytes, in_parts: bool) -> str:
    if in_parts:
        upload = client.uploads.upload_file_chunked(
            file=content, filename="a.jsonl", bytes=len(content), mime_type="a/b", purpose="batch"
        )
        file_id = upload.file.id if upload.file else ""
    else:
        file_id = client.files.create(file=content, purpose="batch").id
    return client.batches.create(
        input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
    ).id


def run_job(client: OpenAI, mark: Path | None, point: FailPoint | None) -> tuple[str, float]:
    """One job, with a crash at a point when its mark is taken away; how long it took."""
    count = LINES * 6 if point in CANCELLED else LINES  # not done before a dead server is back
    content = b"".join(chat_line(f"r{n}", MODEL, f"line {n}") for n in range(count))
    if mark is not None:
        mark.unlink()
    started = time.monotonic()
    batch = submit(client, content, in_parts=point is FailPoint.UPLOAD_JOINED)
    if point in CANCELLED:
        eventually(lambda: client.batches.retrieve(batch).status == "in_progress", 300)
        client.batches.cancel(batch)
    eventually(lambda: client.batches.retrieve(batch).status in ("completed", "cancelled"), 300)
    if mark is not None:
        eventually(mark.exists, 60)
    return batch, time.monotonic() - started


def redone(sessions: SessionFactory, batch: str) -> int:
    """Lines of an ended job that were run under a later lease; its invariants hold."""
    job_id = decode(JOB_PREFIX, batch)
    assert job_id is not None
    with sessions() as session:
        check_job(session, job_id)
        again = select(func.count()).where(Usage.job_id == job_id, Usage.attempt > 1)
        count = session.scalar(again) or 0
    check_files(sessions, job_id)
    return count


def campaign(server: Server, rounds: int, chosen: Sequence[FailPoint]) -> None:
    runtime = open_runtime(load_settings(server.data_dir))
    marks = runtime.settings.failpoint_marks
    marks.mkdir(parents=True, exist_ok=True)
    for point in POINTS:
        (marks / point).touch()
    client = OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=9)
    calm = statistics.median(run_job(client, None, None)[1] for _ in range(3))
    sys.stdout.write(json.dumps({"undisturbed_seconds": round(calm, 1)}) + "\n")
    for _ in range(rounds):
        for point in chosen:
            batch, seconds = run_job(client, marks / point, point)
            found = {
                "point": point,
                "seconds": round(seconds, 1),
                "seconds_more": round(seconds - calm, 1),
                "lines_redone": redone(runtime.sessions, batch),
            }
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
    runtime.close()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    chosen = [FailPoint(name) for name in sys.argv[2:]] or POINTS
    with tempfile.TemporaryDirectory(prefix="tokenmill-campaign-") as folder:
        data_dir = Path(folder)
        (data_dir / "models").mkdir()
        run_cli(data_dir, "models", "add", MODEL, "stub:?rows=8&step_ms=40")
        options = ("--workers", "2", "--model", MODEL)
        with running_server(data_dir, *options, **SETTINGS) as server:
            campaign(server, rounds, chosen)


if __name__ == "__main__":
    main()
