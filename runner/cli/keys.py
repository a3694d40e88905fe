"""``tokenmill keys``: make, list and revoke API keys."""

from dataclasses import replace
from typing import Annotated

import typer

from runner.cli.console import AsJson, DataDir, age, print_json, print_table
from runner.cli.installation import installation
from runner.cli.projects import read_id
from runner.domain import ids
from runner.services import keys, projects, request_limits
from runner.services.keys import KeyRecord

app = typer.Typer(help="API keys of projects.", no_args_is_help=True)

PerMinute = Annotated[
    int, typer.Option(min=0, help="How many requests the key may send; 0 is without a limit.")
]


def register(parent: typer.Typer) -> None:
    """Add the group to the command line."""
    parent.add_typer(app, name="keys")


@app.command()
def create(
    project: Annotated[str, typer.Option(help="Whose key it is; made if new.")] = "default",
    name: Annotated[str, typer.Option(help="What to call the key.")] = "default",
    requests_per_minute: PerMinute = 0,
    operator: Annotated[
        bool, typer.Option("--operator", help="It may also drain workers, which serve all.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and show it, this once."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        is_new = all(one.name != project for one in projects.list_projects(session))
        record, secret = keys.create_key(session, project, name, operator)
        if requests_per_minute:
            request_limits.set_limit(session, record.id, requests_per_minute)
            record = replace(record, requests_per_minute=requests_per_minute)
    if is_new:
        typer.echo(f"The project {project!r} is new with this key.", err=True)
    if as_json:
        print_json({"key": secret, **_shown(record)})
    else:
        typer.echo(secret)
        typer.echo("Keep it now: it is not shown again.", err=True)


@app.command("ls")
def list_all(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List keys, without their secrets."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        records = keys.list_keys(session)
    if as_json:
        print_json([_shown(record) for record in records])
        return
    rows = [
        (
            shown["id"],
            record.project,
            record.name,
            record.hint + "…",
            "yes" if record.is_operator else None,
            record.requests_per_minute,
            age(record.created_at),
            age(record.last_used_at),
            age(record.revoked_at),
        )
        for record in records
        for shown in [_shown(record)]
    ]
    print_table(
        (
            "id",
            "project",
            "name",
            "key",
            "operator",
            "per minute",
            "created",
            "last used",
            "revoked",
        ),
        rows,
    )


@app.command()
def limit(
    key_id: str,
    requests_per_minute: PerMinute,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Limit how many requests a key may send in a minute (its id is in ``keys ls``)."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        wanted = read_id(ids.API_KEY_PREFIX, key_id, "key", "keys ls")
        request_limits.set_limit(session, wanted, requests_per_minute or None)
    if as_json:
        print_json({"id": key_id, "requests_per_minute": requests_per_minute or None})
    elif requests_per_minute:
        typer.echo(f"{key_id} may send {requests_per_minute:,} requests in a minute.")
    else:
        typer.echo(f"{key_id} may send as many requests as it likes.")


@app.command()
def revoke(key_id: str, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """End a key at once (its id is in ``keys ls``)."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        keys.revoke_key(session, read_id(ids.API_KEY_PREFIX, key_id, "key", "keys ls"))
    if as_json:
        print_json({"id": key_id, "revoked": True})
    else:
        typer.echo(f"{key_id} is revoked.")


def _shown(record: KeyRecord) -> dict[str, object]:
    return {
        "id": ids.encode(ids.API_KEY_PREFIX, record.id),
        "project": record.project,
        "name": record.name,
        "hint": record.hint,
        "is_operator": record.is_operator,
        "requests_per_minute": record.requests_per_minute,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "last_used_at": record.last_used_at,
        "revoked_at": record.revoked_at,
    }
