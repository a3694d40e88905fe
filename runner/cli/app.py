"""All verbs together, and what becomes of their errors."""

import typer

from runner.cli import bench, demo, jobs, keys, lifecycle, models, profile, run

app = typer.Typer(
    name="tokenmill",
    help="Batch inference: files of prompts in, accounted results out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
lifecycle.register(app)
jobs.register(app)
app.command()(run.run)
app.command()(profile.profile)
app.add_typer(keys.app, name="keys")
app.add_typer(models.app, name="models")
app.add_typer(bench.app, name="bench")
app.command()(demo.demo)


def main() -> None:
    """The entry point of the ``tokenmill`` command."""
    app()
