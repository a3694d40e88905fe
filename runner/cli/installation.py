"""The installation that a verb works on, and how a verb fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from sqlalchemy.exc import OperationalError

from runner.cli.exit_codes import ExitCode
from runner.config import load_settings
from runner.db import migrate
from runner.domain.errors import RunnerError, Unavailable
from runner.embedded import EmbeddedServices
from runner.runtime import NotRunning, Runtime, find_services, open_runtime
from runner.supervisor.up_state import is_up


@contextmanager
def installation(data_dir: Path | None) -> Iterator[Runtime]:
    """The runtime of an installation that is up; else its services are started meanwhile."""
    settings = load_settings(data_dir)
    with failing_clearly():
        try:
            find_services(settings)
        except NotRunning:
            _refuse_while_up(settings.data_dir)
            with EmbeddedServices(
                settings.data_dir,
                database_url=settings.database_url,
                broker_url=settings.broker_url,
            ) as urls:
                migrate.upgrade(urls.database_url)
                yield from _opened(data_dir)
        else:
            yield from _opened(data_dir)


def _refuse_while_up(data_dir: Path) -> None:
    """Services that were started here would be stopped at the end, under those who use them."""
    if is_up(data_dir):
        raise Unavailable(
            f"The database of {data_dir} does not answer at the moment. Try again in some "
            "seconds; `tokenmill status` shows what runs."
        )


def _opened(data_dir: Path | None) -> Iterator[Runtime]:
    runtime = open_runtime(load_settings(data_dir))
    try:
        yield runtime
    finally:
        runtime.close()


@contextmanager
def failing_clearly() -> Iterator[None]:
    """Turn expected errors into one sentence on standard error and an exit code."""
    try:
        yield
    except RunnerError as error:
        typer.echo(f"error: {error.message} [{error.code}]", err=True)
        is_away = error.code in (NotRunning.code, Unavailable.code)
        code = ExitCode.UNREACHABLE if is_away else ExitCode.USAGE
        raise typer.Exit(code) from None
    except OperationalError as error:
        typer.echo(f"error: the database cannot be reached: {error.orig}", err=True)
        raise typer.Exit(ExitCode.UNREACHABLE) from None
