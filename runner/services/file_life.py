"""The end of a file's life: whether it has come, and what to tell of it."""

from datetime import UTC, datetime

from sqlalchemy import ColumnElement, and_, func, or_

from runner.db.models import File

_NAMES = {"output": "output file", "error": "error file"}


def is_visible() -> ColumnElement[bool]:
    """Whether a file is neither deleted nor expired."""
    return and_(
        File.deleted_at.is_(None), or_(File.expires_at.is_(None), File.expires_at > func.now())
    )


def removed(moment: datetime) -> str:
    """That retention removed the lines of a job, in a sentence."""
    return f"The lines were removed on {_told(moment)} under retention."


def why_gone(file: File) -> str:
    """What became of a file that is not visible any more, in a sentence."""
    name = _NAMES.get(file.view or "", "file")
    if file.deleted_at is not None:
        return f"The {name} was deleted on {_told(file.deleted_at)}."
    assert file.expires_at is not None
    return f"The {name} expired on {_told(file.expires_at)}."


def _told(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
