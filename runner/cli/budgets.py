"""``tokenmill budgets``: what projects and their keys may be billed in a month."""

from typing import Annotated

import typer

from runner.cli.console import AsJson, DataDir, installation, plain, print_json, print_table
from runner.domain import ids
from runner.domain.budgets import amount, read_amount
from runner.domain.errors import NotFound
from runner.services import budgets, keys
from runner.services.budgets import BudgetRecord

app = typer.Typer(help="Monthly budgets of projects and keys.", no_args_is_help=True)

Project = Annotated[str, typer.Option(help="Whose budget it is.")]
Key = Annotated[
    str | None, typer.Option("--key", help="The id of one of its keys; else all of the project.")
]


@app.command("set")
def set_budget(
    limit: Annotated[str, typer.Argument(help="What may be billed in a month, such as 25.00.")],
    key: Key = None,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Give a project, or one of its keys, a budget; jobs that it stopped go on if they fit."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        nano = read_amount(limit, "LIMIT")
        project_id = keys.ensure_project(session, project)
        record = budgets.set_budget(session, project_id, None if key is None else _key(key), nano)
    _show([record], as_json)


@app.command("ls")
def list_all(
    project: Project = "default", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show the budgets of a project with what this month has used of them."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        records = budgets.list_budgets(session, keys.ensure_project(session, project))
    _show(records, as_json)


@app.command("rm")
def remove(
    key: Key = None,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take the budget of a project, or of one of its keys, away."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        project_id = keys.ensure_project(session, project)
        payer_id = project_id if key is None else _key(key)
        budgets.remove_budget(session, project_id, payer_id)
    if as_json:
        print_json({"removed": True})
    else:
        typer.echo("The budget is removed.")


def _key(text: str) -> ids.ApiKeyId:
    uuid = ids.decode(ids.API_KEY_PREFIX, text)
    if uuid is None:
        raise NotFound(f"{text!r} is not a key's id; see: tokenmill keys ls.")
    return ids.ApiKeyId(uuid)


def _show(records: list[BudgetRecord], as_json: bool) -> None:
    if as_json:
        print_json([_plain(record) for record in records])
        return
    rows = [
        (
            "project" if record.api_key_id is None else f"key {record.key_name}",
            f"{record.month:%Y-%m}",
            amount(record.limit.limit_nano),
            amount(record.limit.spent_nano),
            amount(record.limit.reserved_nano),
            amount(max(0, record.limit.left_nano)),
        )
        for record in records
    ]
    print_table(("budget of", "month (UTC)", "limit", "spent", "reserved", "left"), rows)


def _plain(record: BudgetRecord) -> dict[str, object]:
    key_id = record.api_key_id
    return {
        "api_key_id": key_id and ids.encode(ids.API_KEY_PREFIX, key_id),
        "key_name": record.key_name,
        "month": f"{record.month:%Y-%m}",
        **{name: value for name, value in plain(record.limit).items() if name.endswith("_nano")},
        "left_nano": max(0, record.limit.left_nano),
    }
