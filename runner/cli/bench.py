"""``tokenmill bench``: how fast this machine goes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from runner.cli.console import AsJson, DataDir, print_json, print_table
from runner.cli.exit_codes import ExitCode
from runner.cli.installation import failing_clearly
from runner.config import load_settings
from runner.model_library import find_folder

app = typer.Typer(help="Benchmarks.", no_args_is_help=True)

_ENGINE_BENCH = "runner.inference.local.bench"


def register(parent: typer.Typer) -> None:
    """Add the group to the command line."""
    parent.add_typer(app, name="bench")


@app.callback()
def _group() -> None:
    """Benchmarks."""


@app.command()
def engine(
    model: Annotated[str, typer.Option(help="A model's folder, or its name.")],
    workload: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="Lines of token ids and max_tokens.")
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write the generated ids.")] = None,
    profile: Annotated[bool, typer.Option(help="Tell where the time of the steps went.")] = False,
    guesses: Annotated[bool, typer.Option(help="Let rows guess what follows, as always.")] = True,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Run a workload of token ids through the engine alone, greedily.

    The clock runs from the first line added to the last output, with a cold prefix cache.
    """
    with failing_clearly():
        folder = find_folder(load_settings(data_dir), model)
    places = [str(folder), str(workload), str(out or "")]
    options = [*["profile"] * profile, *["no-guesses"] * (not guesses)]
    command = [sys.executable, "-m", _ENGINE_BENCH, *places, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise typer.Exit(ExitCode.FAILURES)
    summary = json.loads(done.stdout)
    if as_json:
        print_json(summary)
        return
    stats = summary.pop("stats")
    parts = summary.pop("profile", {})
    print_table(("figure", "value"), [*summary.items(), *stats.items()])
    if parts:
        whole = sum(parts.values())
        rows = [(part, spent, f"{100 * spent / whole:.1f} %") for part, spent in parts.items()]
        print_table(("part of the steps", "seconds", "share"), rows)
