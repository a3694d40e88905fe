"""How pytest-xdist shares the tests out: whole files, and the longest of them first.

A file's tests share what is dear (an installation, a browser, a model), so they stay together, and
so do the files that share one. What takes long must not be begun last, when all others have ended.
"""

from collections.abc import Iterable

import pytest
from xdist.scheduler import LoadScopeScheduling

# Folders and files whose tests wait for whole processes to start, work and stop.
_LONG = ("e2e", "faults", "test_embedded.py", "test_supervisor_cli.py", "test_supervisor.py")
# They ask the installation with the real model that the fixture ``server`` starts.
_ONE_INSTALLATION = (
    "tests/e2e/test_openai_client.py",
    "tests/e2e/test_cli.py",
    "tests/e2e/test_conformance.py",
    "tests/e2e/test_profile.py",
)


class WholeFiles(LoadScopeScheduling):
    """Gives each process one file after the other, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _ONE_INSTALLATION[0] if file in _ONE_INSTALLATION else file


def longest_first(items: list[pytest.Item]) -> None:
    """Move the tests that take long to the front; the order is otherwise kept."""
    items.sort(key=lambda item: _place(item.path.parts[-2:]))


def _place(parts: Iterable[str]) -> int:
    known = [_LONG.index(part) for part in parts if part in _LONG]
    return min(known, default=len(_LONG))
