"""Log files that do not grow for ever: one older generation is kept."""

from pathlib import Path

_ROTATE_BYTES = 10 * 1024**2


def rotate(path: Path) -> None:
    """Set a large log aside as ``.1`` before its process starts anew."""
    if path.exists() and path.stat().st_size > _ROTATE_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
