"""All verbs together, and what becomes of their errors."""

import sys
from importlib import import_module
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup
from typer.main import get_group

from runner.cli.exit_codes import ExitCode

_MODULES = {
    "up": "lifecycle",
    "down": "lifecycle",
    "status": "lifecycle",
    "logs": "lifecycle",
    "doctor": "lifecycle",
    "backup": "backups",
    "restore": "backups",
    "submit": "jobs",
    "estimate": "estimate",
    "run": "run",
    "profile": "profile",
    "retention": "retention",
    "conformance": "conformance",
    "demo": "demo",
    "jobs": "job_verbs",
    "projects": "projects",
    "keys": "keys",
    "budgets": "budgets",
    "models": "models",
    "webhooks": "webhooks",
    "costs": "costs",
    "schedules": "schedules",
    "workers": "workers",
    "bench": "bench",
}
"""Where each verb is found, in the order in which they are told; each module has a `register`."""


class Verbs(TyperGroup):
    """Imports a verb's module when it is asked for: all of them take seconds."""

    # The types are those of the click that typer carries inside, where nobody else may look.

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        return list(_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        # For a word that is none of them all are loaded, to propose what it may have meant.
        for verb in [cmd_name] if cmd_name in _MODULES else _MODULES:
            self._load(verb)
        return super().get_command(ctx, cmd_name)

    def _load(self, verb: str) -> None:
        if verb not in self.commands:
            part = typer.Typer()
            import_module(f"runner.cli.{_MODULES[verb]}").register(part)
            self.commands.update(get_group(part).commands)


app = typer.Typer(
    name="tokenmill",
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)


@app.callback()
def tokenmill() -> None:
    """Batch inference: files of prompts in, accounted results out."""


def main() -> None:
    """The entry point of the ``tokenmill`` command."""
    try:
        app()
    except ValidationError as error:  # of the settings, which every verb reads
        for fault in error.errors(include_url=False):
            name = ".".join(map(str, fault["loc"]))
            cause = str(fault["msg"]).removeprefix("Value error, ")
            typer.echo(f"The setting {name!r} is wrong. {cause}", err=True)
        sys.exit(ExitCode.USAGE)
