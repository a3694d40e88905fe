"""``tokenmill budgets``: what projects and their keys may be billed in a month."""

from typing import Annotated

import typer

from runner.cli.console import AsJson, DataDir, plain, print_json, print_table
from runner.cli.projects import acting_for, read_id
from runner.domain import ids
from runner.domain.budgets import amount, read_amount
from runner.services import budgets
from runner.services.budgets import BudgetRecord

app = typer.Typer(help="Monthly budgets of projects and keys.", no_args_is_help=True)

Project = Annotated[str, typer.Option(help="Whose budget it is.")]
Key = Annotated[
    str | None, typer.Option("--key", help="The id of one of its keys; else all of the project.")
]


def register(parent: typer.Typer) -> None:
    """Add the group to the command line."""
    parent.add_typer(app, name="budgets")


@app.command("set")
def set_budget(
    limit: Annotated[str, typer.Argument(help="What may be billed in a month, such as 25.00.")],
    key: Key = None,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Give a project, or one of its keys, a budget; jobs that it stopped go on if they fit."""
    with acting_for(project, data_dir) as acting:
        nano = read_amount(limit, "LIMIT")
        whose = None if key is None else _key(key)
        record = budgets.set_budget(acting.session, acting.project_id, whose, nano)
    _show([record], as_json)


@app.command("ls")
def list_all(
    project: Project = "default", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show the budgets of a project with what this month has used of them."""
    with acting_for(project, data_dir) as acting:
        records = budgets.list_budgets(acting.session, acting.project_id)
    _show(records, as_json)


@app.command("rm")
def remove(
    key: Key = None,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Take the budget of a project, or of one of its keys, away."""
    with acting_for(project, data_dir) as acting:
        payer_id = acting.project_id if key is None else _key(key)
        budgets.remove_budget(acting.session, acting.project_id, payer_id)
    if as_json:
        print_json({"removed": True})
    else:
        typer.echo("The budget is removed.")


def _key(text: str) -> ids.ApiKeyId:
    return ids.ApiKeyId(read_id(ids.API_KEY_PREFIX, text, "key", "keys ls"))


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
