"""``tokenmill webhooks``: who hears of events, and what was sent."""

from typing import Annotated
from uuid import UUID

import typer

from runner.cli.console import AsJson, DataDir, age, print_json, print_table
from runner.cli.projects import acting_for, read_id
from runner.domain.ids import DELIVERY_PREFIX, WEBHOOK_PREFIX, encode
from runner.domain.webhooks import event_id
from runner.services import deliveries, webhooks
from runner.services.deliveries import DeliveryRecord
from runner.services.webhooks import NewWebhook, WebhookRecord

app = typer.Typer(help="Addresses that hear of a project's events.", no_args_is_help=True)

Project = Annotated[str, typer.Option(help="The project.")]
WebhookArgument = Annotated[str, typer.Argument(help="Its id, from `webhooks ls`.")]


def register(parent: typer.Typer) -> None:
    """Add the group to the command line."""
    parent.add_typer(app, name="webhooks")


@app.command()
def add(
    url: Annotated[str, typer.Argument(help="Where to post events: https, on a public host.")],
    event: Annotated[list[str], typer.Option(help="Only these; may be repeated.")] = [],  # noqa: B006
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Add an address and show the secret that signs what is sent, this once."""
    with acting_for(project, data_dir) as acting:
        new = NewWebhook(url, event, description)
        trusted = acting.runtime.settings.webhook_hosts
        record, secret = webhooks.create_webhook(acting.session, acting.project_id, new, trusted)
    if as_json:
        print_json({**_shown(record), "secret": secret})
    else:
        typer.echo(f"{encode(WEBHOOK_PREFIX, record.id)}\n{secret}")
        typer.echo("Keep the secret now: it is not shown again.", err=True)


@app.command("ls")
def list_all(
    project: Project = "default", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """List the addresses of a project."""
    with acting_for(project, data_dir) as acting:
        records = webhooks.list_webhooks(acting.session, acting.project_id)
    if as_json:
        print_json([_shown(record) for record in records])
        return
    rows = [
        (
            encode(WEBHOOK_PREFIX, record.id),
            record.url,
            " ".join(record.kinds) or "all",
            record.pause_reason or "active",
            age(record.created_at),
        )
        for record in records
    ]
    print_table(("id", "url", "events", "state", "created"), rows)


@app.command("rm")
def remove(
    webhook: WebhookArgument,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove an address."""
    with acting_for(project, data_dir) as acting:
        webhooks.delete_webhook(acting.session, acting.project_id, _read_webhook(webhook))
    _tell(as_json, {"id": webhook, "deleted": True}, f"{webhook} is removed.")


@app.command()
def rotate(
    webhook: WebhookArgument,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a new secret and show it; for a day the old one signs as well."""
    with acting_for(project, data_dir) as acting:
        secret = webhooks.rotate_secret(acting.session, acting.project_id, _read_webhook(webhook))
    _tell(as_json, {"id": webhook, "secret": secret}, secret)


@app.command()
def resume(
    webhook: WebhookArgument,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Send again to an address that was paused because it failed."""
    with acting_for(project, data_dir) as acting:
        record = webhooks.resume_webhook(acting.session, acting.project_id, _read_webhook(webhook))
    _tell(as_json, _shown(record), f"{webhook} is active.")


@app.command("test")
def try_out(
    webhook: WebhookArgument,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Send an event that means nothing; `webhooks deliveries` shows what came of it."""
    with acting_for(project, data_dir) as acting:
        sent = deliveries.send_test(acting.session, acting.project_id, _read_webhook(webhook))
    _tell(as_json, _sent(sent), f"{encode(DELIVERY_PREFIX, sent.id)} is on its way.")


@app.command("deliveries")
def list_deliveries(
    webhook: WebhookArgument,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 20,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what was sent to an address, and what came of it."""
    with acting_for(project, data_dir) as acting:
        records = deliveries.list_deliveries(
            acting.session, acting.project_id, _read_webhook(webhook), count
        )
    if as_json:
        print_json([_sent(record) for record in records])
        return
    rows = [
        (
            encode(DELIVERY_PREFIX, record.id),
            record.event.kind,
            record.state,
            len(record.attempts),
            _last_word(record),
            age(record.created_at),
            age(record.next_try_at),
        )
        for record in records
    ]
    columns = ("id", "event", "state", "tries", "last answer", "created", "next try")
    print_table(columns, rows)


@app.command()
def replay(
    webhook: WebhookArgument,
    delivery: Annotated[str, typer.Argument(help="Its id, from `webhooks deliveries`.")],
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Send an event once more."""
    with acting_for(project, data_dir) as acting:
        wanted = read_id(DELIVERY_PREFIX, delivery, "delivery", "webhooks deliveries")
        sent = deliveries.replay(acting.session, acting.project_id, _read_webhook(webhook), wanted)
    _tell(as_json, _sent(sent), f"{encode(DELIVERY_PREFIX, sent.id)} is on its way.")


def _read_webhook(text: str) -> UUID:
    return read_id(WEBHOOK_PREFIX, text, "webhook", "webhooks ls")


def _tell(as_json: bool, value: object, words: str) -> None:
    if as_json:
        print_json(value)
    else:
        typer.echo(words)


def _last_word(record: DeliveryRecord) -> str | None:
    if not record.attempts:
        return None
    last = record.attempts[-1]
    return last.fault or str(last.status)


def _shown(record: WebhookRecord) -> dict[str, object]:
    return {
        "id": encode(WEBHOOK_PREFIX, record.id),
        "url": record.url,
        "description": record.description,
        "events": list(record.kinds),
        "created_at": record.created_at,
        "paused_at": record.paused_at,
        "pause_reason": record.pause_reason,
        "previous_secret_until": record.previous_secret_until,
    }


def _sent(record: DeliveryRecord) -> dict[str, object]:
    return {
        "id": encode(DELIVERY_PREFIX, record.id),
        "event_id": event_id(record.event),
        "event": record.event.kind,
        "state": record.state,
        "created_at": record.created_at,
        "next_try_at": record.next_try_at,
        "attempts": list(record.attempts),
    }
