"""``tokenmill keys``: make, list and revoke API keys."""

from typing import Annotated

import typer

from runner.cli.console import AsJson, DataDir, age, installation, print_json, print_table
from runner.domain import ids
from runner.domain.errors import NotFound
from runner.services import keys, projects
from runner.services.keys import KeyRecord

app = typer.Typer(help="API keys of projects.", no_args_is_help=True)


@app.command()
def create(
    project: Annotated[str, typer.Option(help="Whose key it is; made if new.")] = "default",
    name: Annotated[str, typer.Option(help="What to call the key.")] = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and show it, this once."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        is_new = all(one.name != project for one in projects.list_projects(session))
        record, secret = keys.create_key(session, project, name)
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
            age(record.created_at),
            age(record.last_used_at),
            age(record.revoked_at),
        )
        for record in records
        for shown in [_shown(record)]
    ]
    print_table(("id", "project", "name", "key", "created", "last used", "revoked"), rows)


@app.command()
def revoke(key_id: str, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """End a key at once (its id is in ``keys ls``)."""
    with installation(data_dir) as runtime:
        uuid = ids.decode(ids.API_KEY_PREFIX, key_id)
        if uuid is None:
            raise NotFound(f"{key_id!r} is not a key's id; see: tokenmill keys ls.")
        with runtime.transaction() as session:
            keys.revoke_key(session, uuid)
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
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "last_used_at": record.last_used_at,
        "revoked_at": record.revoked_at,
    }
