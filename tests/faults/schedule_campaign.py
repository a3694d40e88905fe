"""By hand: a schedule of every minute, and every seven seconds something is killed.

``PYTHONPATH=.:tests python tests/faults/schedule_campaign.py [MINUTES]`` starts an installation
with the settings of production and prints a line of JSON per planned time: how many seconds later
its job began and ended, and the most leases of a shard of it; then how often what was killed. A
planned time without exactly one finished job, or a broken invariant, ends it.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from itertools import cycle
from pathlib import Path

from fire import SLOW_STUB
from installation import Server, run_cli, running_server
from night import Night, flush, kill
from sqlalchemy import func, select

from runner.config import load_settings
from runner.db.models import Job, ScheduleRun, Shard
from runner.db.session import SessionFactory
from runner.runtime import open_runtime

LINES = 1500
PAUSE_SECONDS = 7.0  # six faults are no minute: they come at other moments of each job
FAULTS = ("beat", "broker", "engine-1", "cpu", "broker", "engine-2")


def strike(server: Server, seconds: float) -> Counter[str]:
    """One fault after the other for so long; how often each."""
    done: Counter[str] = Counter()
    give_up_at = time.monotonic() + seconds
    for name in cycle(FAULTS):
        time.sleep(PAUSE_SECONDS)
        if time.monotonic() > give_up_at:
            return done
        if name == "broker":
            flush(server)
        else:
            kill(server, name)
        done[name] += 1
    raise AssertionError("a cycle has no end")


def told(sessions: SessionFactory, run: ScheduleRun) -> dict[str, object]:
    """What became of one planned time."""
    with sessions() as session:
        job = session.get_one(Job, run.job_id)
        attempts = session.scalar(select(func.max(Shard.attempt)).where(Shard.job_id == job.id))
    assert run.started_at is not None
    assert job.completed_at is not None
    return {
        "planned_at": f"{run.planned_at:%H:%M}",
        "started_after": round((run.started_at - run.planned_at).total_seconds(), 1),
        "ended_after": round((job.completed_at - run.planned_at).total_seconds(), 1),
        "attempts": attempts,
    }


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 4.0
    with tempfile.TemporaryDirectory(prefix="tokenmill-campaign-") as folder:
        data_dir = Path(folder)
        (data_dir / "models").mkdir()
        run_cli(data_dir, "models", "add", SLOW_STUB, "stub:?rows=8&step_ms=30")
        with running_server(data_dir, "--workers", "2", "--model", SLOW_STUB) as server:
            runtime = open_runtime(load_settings(data_dir))
            night = Night.begin(server, runtime.sessions, LINES)
            faults = strike(server, minutes * 60)
            for run in night.end():
                sys.stdout.write(json.dumps(told(runtime.sessions, run)) + "\n")
            sys.stdout.write(json.dumps({"lines_each": LINES, "faults": faults}) + "\n")
            runtime.close()


if __name__ == "__main__":
    main()
