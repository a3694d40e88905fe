"""Where an engine keeps things on this machine from one start to the next."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


class NoCacheFolder(Exception):
    """No folder can be had; the message says what would help."""


def cache_folder(kind: str) -> Path:
    """A folder of this user's own for one kind of thing, created when it is missing.

    Code is loaded from it, and weights with their addresses, so a folder that somebody else could
    write is not taken.

    Raises:
        NoCacheFolder: there is none.
    """
    user = os.getuid()
    candidates = [Path(tempfile.gettempdir()) / f"tokenmill-{kind}-{user}"]
    with contextlib.suppress(RuntimeError):  # a user without a home
        candidates.insert(0, Path.home() / ".cache" / "tokenmill" / kind)
    for folder in candidates:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
        except OSError:
            continue
        is_private = status.st_uid == user and not status.st_mode & 0o022
        if is_private and os.access(folder, os.W_OK):
            return folder
    raise NoCacheFolder(
        f"no private folder for {kind} ({', '.join(map(str, candidates))}); make one writable"
    )


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Where to write what `path` is to hold; it is renamed into place when it is complete.

    Several processes may do so at once: the last one's result stays.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as aside:
        made = Path(aside) / path.name
        yield made
        os.replace(made, path)
