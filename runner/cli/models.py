"""``tokenmill models``: what lines may name."""

from typing import Annotated

import typer

from runner.cli.console import AsJson, DataDir, age, print_json, print_table
from runner.cli.installation import installation
from runner.domain.pricing import NANO
from runner.model_library import BUILTIN_MODEL, add_model, builtin_folder
from runner.services import models
from runner.services.models import PriceList

app = typer.Typer(help="Models and their prices.", no_args_is_help=True)

Price = Annotated[float | None, typer.Option(help="Per million tokens, in the currency.", min=0)]


def register(parent: typer.Typer) -> None:
    """Add the group to the command line."""
    parent.add_typer(app, name="models")


@app.command("ls")
def list_all(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List models."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        records = models.list_models(session)
    if as_json:
        print_json(records)
        return
    rows = [(one.name, one.context_length, age(one.created_at), one.path) for one in records]
    print_table(("name", "context", "added", "folder"), rows)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="How lines will name it.")],
    source: Annotated[
        str | None,
        typer.Argument(help="A folder of safetensors, a .gguf file, or stub: (no weights)."),
    ] = None,
    input_price: Price = None,
    cached_price: Price = None,
    output_price: Price = None,
    reused_price: Annotated[
        float, typer.Option(min=0, help="Per million lines that take another's answer.")
    ] = 0.0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Register a model. Pickled weights and remote code are refused."""
    default = PriceList()
    prices = PriceList(
        _nano(input_price, default.input_nano_per_million),
        _nano(cached_price, default.cached_nano_per_million),
        _nano(output_price, default.output_nano_per_million),
        reused_nano_per_million=round(reused_price * NANO),
    )
    with installation(data_dir) as runtime:
        if source is None:
            if name != BUILTIN_MODEL:
                raise typer.BadParameter(f"Say where {name} is: a folder or a .gguf file.")
            source = str(builtin_folder(runtime.settings))
        record = add_model(runtime.settings, runtime.sessions, name, source, prices)
    if as_json:
        print_json(record)
    else:
        typer.echo(f"{record.name}: {record.context_length} tokens of context, {record.path}")


def _nano(price: float | None, default: int) -> int:
    return default if price is None else round(price * NANO)
