"""The file of a backup: a ZIP archive of a dump and, after it, a manifest that vouches for it.

The manifest comes last, so that a dump of any size is written in one pass, and half a file is none.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import msgspec

from runner.backup.errors import BackupError

FORMAT = 1
_DUMP, _MANIFEST = "database.dump", "manifest.json"
_PIECE_BYTES = 1024**2
# What damaged bytes make of reading an archive: a header may come to ask for anything.
_DAMAGES = (BadZipFile, KeyError, msgspec.DecodeError, EOFError, RuntimeError, ValueError)


class Dump(msgspec.Struct, frozen=True):
    """What the dump must be, to the last byte."""

    bytes: int
    sha256: str


class Contents(msgspec.Struct, frozen=True):
    """What was in the database, all at one moment: its schema, and how many rows each table had."""

    made_at: datetime
    revision: str
    server: str
    tables: dict[str, int]


class Manifest(msgspec.Struct, frozen=True):
    """All that is known of a backup without reading its dump."""

    format: int
    tokenmill: str
    contents: Contents
    dump: Dump


@dataclass(frozen=True, slots=True)
class Archive:
    """A backup whose dump is what the manifest says."""

    path: Path
    manifest: Manifest

    def dump(self) -> Iterator[bytes]:
        """The dump, piece by piece."""
        with ZipFile(self.path) as archive:
            yield from _pieces(archive)


def write_archive(
    target: Path, pieces: Iterable[bytes], contents: Contents, version: str
) -> Manifest:
    """Write a backup of a dump that is still being made; the file is there once it is whole.

    Raises:
        BackupError: there is a file of that name already, or it cannot be written.
    """
    if target.exists():
        raise BackupError(f"{target} exists already; name a file that does not.")
    draft = target.with_name(f"{target.name}.part")
    try:
        # Others must not read it: it holds prompts, answers and the secrets of webhooks.
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as stream:
            with ZipFile(stream, "w", ZIP_STORED) as archive:
                dump = _write_dump(archive, pieces)
                manifest = Manifest(FORMAT, version, contents, dump)
                text = msgspec.json.format(msgspec.json.encode(manifest))
                archive.writestr(_MANIFEST, text)
            stream.flush()
            os.fsync(stream.fileno())
        draft.rename(target)
    except OSError as error:
        raise BackupError(f"{target} cannot be written: {error.strerror}.") from error
    finally:
        draft.unlink(missing_ok=True)
    return manifest


def open_archive(path: Path) -> Archive:
    """A backup, read once to the end to see that it is sound.

    Raises:
        BackupError: it is none, of a later format, or damaged.
    """
    try:
        with ZipFile(path) as archive:
            manifest = msgspec.json.decode(archive.read(_MANIFEST), type=Manifest)
            if manifest.format != FORMAT:
                raise BackupError(
                    f"{path} has the format {manifest.format}; this version reads {FORMAT}. "
                    f"Restore it with Tokenmill {manifest.tokenmill}."
                )
            _check_dump(path, archive, manifest.dump)
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror or error}.") from error
    except _DAMAGES as error:
        raise BackupError(f"{path} is no whole backup: {error}. Take another copy.") from error
    return Archive(path, manifest)


def _write_dump(archive: ZipFile, pieces: Iterable[bytes]) -> Dump:
    digest, size = hashlib.sha256(), 0
    with archive.open(ZipInfo(_DUMP), "w", force_zip64=True) as member:
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
            member.write(piece)
    return Dump(size, digest.hexdigest())


def _check_dump(path: Path, archive: ZipFile, wanted: Dump) -> None:
    digest, size = hashlib.sha256(), 0
    for piece in _pieces(archive):
        digest.update(piece)
        size += len(piece)
    if (size, digest.hexdigest()) != (wanted.bytes, wanted.sha256):
        raise BackupError(f"{path} is damaged: its dump has another checksum. Take another copy.")


def _pieces(archive: ZipFile) -> Iterator[bytes]:
    with archive.open(_DUMP) as member:
        while piece := member.read(_PIECE_BYTES):
            yield piece
