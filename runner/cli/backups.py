"""``tokenmill backup`` and ``tokenmill restore``: a whole installation in one file, and back."""

from pathlib import Path
from typing import Annotated

import typer

from runner.backup import Archive, Manifest, back_up, open_archive
from runner.backup import restore as restore_archive
from runner.cli.console import AsJson, DataDir, age, print_json
from runner.cli.installation import failing_clearly, installation
from runner.config import load_settings
from runner.domain.errors import StateConflict
from runner.embedded import EmbeddedServices
from runner.supervisor.up_state import is_up

File = Annotated[Path, typer.Argument(help="The file of the backup.", dir_okay=False)]


def register(parent: typer.Typer) -> None:
    """Add ``backup`` and ``restore`` to the command line."""
    parent.command()(backup)
    parent.command()(restore)


def backup(file: File, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Write all that the database holds into one file; jobs may run meanwhile.

    Model weights are not in it. Keep the file private: it holds prompts, answers and secrets.
    """
    with installation(data_dir) as runtime:
        manifest = back_up(runtime.urls.database_url, file)
    _tell(f"{file} is written", manifest, as_json)


def restore(file: File, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Make a new, empty installation what a backup says; it must not be up.

    Leases are free again, and jobs keep what they had left of their windows.
    """
    settings = load_settings(data_dir)
    with failing_clearly():
        archive: Archive = open_archive(file)
        if is_up(settings.data_dir):
            raise StateConflict(
                f"The installation in {settings.data_dir} is up. Stop it with `tokenmill down`, or "
                "restore into another --data-dir."
            )
        with EmbeddedServices(
            settings.data_dir, database_url=settings.database_url, broker_url=settings.broker_url
        ) as urls:
            restore_archive(urls.database_url, archive)
    _tell(f"{file} is restored", archive.manifest, as_json)


def _tell(done: str, manifest: Manifest, as_json: bool) -> None:
    contents = manifest.contents
    rows = sum(contents.tables.values())
    if as_json:
        print_json(
            {
                "made_at": contents.made_at,
                "revision": contents.revision,
                "tables": contents.tables,
                "rows": rows,
                "bytes": manifest.dump.bytes,
                "sha256": manifest.dump.sha256,
            }
        )
        return
    size = manifest.dump.bytes / 1024**2
    typer.echo(f"{done}: {rows:,} rows of {age(contents.made_at)}, {size:,.1f} MiB.")
