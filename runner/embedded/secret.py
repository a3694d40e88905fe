"""Random passwords, each in a file that only its owner can read."""

import os
import secrets
from pathlib import Path


def read_or_create_secret(path: Path) -> str:
    """The password kept in ``path``; made on first use."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        return path.read_text().strip()
    write_private(path, secrets.token_hex(24) + "\n")
    return path.read_text().strip()


def write_private(path: Path, text: str) -> None:
    """Replace a file at once, readable by its owner only; a crash leaves the old or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        if os.geteuid() == 0:
            # Root may work on a user's data directory and must not lock the user out of it.
            folder = path.parent.stat()
            os.fchown(handle, folder.st_uid, folder.st_gid)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
