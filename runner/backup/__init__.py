"""A whole installation in one file, and back: what is in the database, which is everything."""

from runner.backup.archive import Archive, Manifest, open_archive
from runner.backup.copying import back_up, restore
from runner.backup.errors import BackupError

__all__ = ["Archive", "BackupError", "Manifest", "back_up", "open_archive", "restore"]
