"""How long the roll-up and the frozen account of one large job take, on a private Postgres.

``python bench/rollup.py [--lines 1000000]`` writes a ledger of so many rows for one job, then times
what its closing does with them, a second roll-up over the first, and the queries of the page.
"""

import argparse

from scratch import clock, scratch_database
from sqlalchemy import text

from runner.db.session import create_session_factory
from runner.domain.ids import new_uuid
from runner.services.costs import Scope, latencies, spent_by
from runner.services.job_accounts import job_account
from runner.services.rollup import roll_up

_LEDGER = text(
    "INSERT INTO usage (job_id, idx, project_id, model_id, price_id, worker_id, attempt,"
    " prompt_tokens, cached_tokens, output_tokens, queue_us, prefill_us, first_token_us, decode_us,"
    " total_us, device_us, preemptions, recomputed_tokens, billed_nano, run_cost_nano)"
    " SELECT :job, n, :project, :model, :price, :worker, 1, 300, 120, 1 + n % 97,"
    " n::bigint * 7919 % 5000000, 20000, 1 + n::bigint * 31 % 900000,"
    " n::bigint * 104729 % 9000000, 100000 + n::bigint * 15485863 % 20000000, 40000 + n % 1000,"
    " 0, 0, 26500, 12500 FROM generate_series(0, :lines - 1) AS n"
)


def main() -> None:
    """Make the ledger and time what is made of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=1_000_000)
    lines = parser.parse_args().lines
    with scratch_database() as (database_url, _):
        sessions = create_session_factory(database_url)
        names = ("job", "project", "model", "price", "worker")
        ids = {name: new_uuid() for name in names}
        with clock(f"writing {lines:,} rows"), sessions.begin() as session:
            session.execute(_LEDGER, {**ids, "lines": lines})
        with clock("roll-up"), sessions.begin() as session:
            roll_up(session, ids["job"])
        with clock("roll-up again"), sessions.begin() as session:
            roll_up(session, ids["job"])
        with clock("account with exact percentiles"), sessions() as session:
            assert job_account(session, ids["job"]).lines == lines
        with clock("costs by day, and latencies"), sessions() as session:
            assert spent_by(session, Scope(), ("day",))[0].lines == lines
            latencies(session, Scope())


if __name__ == "__main__":
    main()
