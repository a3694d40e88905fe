"""``tokenmill workers``: the engine workers that live, and draining them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer
from sqlalchemy.orm import Session

from runner.cli.console import AsJson, DataDir, age, plain, print_json, print_table
from runner.cli.installation import installation
from runner.cli.profile import choose
from runner.domain.ids import WORKER_PREFIX, encode
from runner.services import drains, profiles
from runner.services.drains import WorkerRecord

app = typer.Typer(help="Engine workers.", no_args_is_help=True)

Name = Annotated[
    str | None, typer.Argument(help="engine-1, or an id; needless while there is but one.")
]


def register(parent: typer.Typer) -> None:
    """Add the group to the command line."""
    parent.add_typer(app, name="workers")


@app.command("ls")
def list_all(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the engine workers that live."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        found = drains.list_workers(session)
    _show(found, as_json)


@app.command()
def drain(worker: Name = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Have a worker finish what it has begun and lease nothing more; it lives on."""
    _change(worker, drains.drain_worker, data_dir, as_json)


@app.command()
def undrain(worker: Name = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Let a drained worker lease again."""
    _change(worker, drains.undrain_worker, data_dir, as_json)


def _change(
    name: str | None,
    change: Callable[[Session, UUID], None],
    data_dir: Path | None,
    as_json: bool,
) -> None:
    with installation(data_dir) as runtime:
        with runtime.transaction() as session:
            known = profiles.live_engine_workers(session)
            chosen = choose(known, name, runtime.settings.data_dir)
            change(session, chosen.id)
        with runtime.transaction() as session:
            found = [one for one in drains.list_workers(session) if one.id == chosen.id]
    _show(found, as_json)


def _show(found: list[WorkerRecord], as_json: bool) -> None:
    if as_json:
        print_json([{**plain(one), "id": encode(WORKER_PREFIX, one.id)} for one in found])
        return
    rows = [
        (
            encode(WORKER_PREFIX, one.id),
            one.model if one.next_model is None else f"{one.model} → {one.next_model}",
            one.state,
            f"{one.host}:{one.pid}",
            f"{one.rows_in_use}/{one.rows}" if one.rows else None,
            one.lines_in_hand,
            *(
                None if rate is None else f"{rate:,.1f}"
                for rate in (one.lines_per_s, one.output_tokens_per_s)
            ),
            *(f"{micros / 1e6:,.0f}" for micros in (one.busy_us, one.idle_us, one.load_us)),
            age(one.started_at),
        )
        for one in found
    ]
    columns = ("worker", "model", "state", "process", "rows", "lines", "lines/s", "tokens/s")
    print_table((*columns, "busy s", "idle s", "load s", "started"), rows)
