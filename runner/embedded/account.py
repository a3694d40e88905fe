"""The operating-system account the embedded servers run under.

Postgres refuses to run as root, and neither server needs to: under root both drop to an
unprivileged account before they are executed.
"""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from runner.embedded.errors import EmbeddedError

_PREFERRED = ("postgres", "nobody")


@dataclass(frozen=True)
class Account:
    """``drops`` tells whether it is another account than our own."""

    uid: int
    gid: int
    drops: bool

    def own(self, target: Path | int) -> None:
        """Give a path or an open file to this account."""
        if self.drops:
            os.chown(target, self.uid, self.gid)


def account_for(home: Path) -> Account:
    """The account for the server whose files live in ``home``: its owner where it exists."""
    existing = home if home.exists() else home.parent
    owner = existing.stat().st_uid
    if os.geteuid() != 0:
        if home.exists() and owner != os.geteuid():
            raise EmbeddedError(
                f"{home} belongs to uid {owner}. Run as that user or as root, "
                "or choose another data directory."
            )
        return Account(os.geteuid(), os.getegid(), drops=False)
    return _unprivileged(owner)


def _unprivileged(owner: int) -> Account:
    """The owner of the files unless that is root or unknown here; initdb needs a named user."""
    if owner != 0:
        try:
            return _drop_to(pwd.getpwuid(owner))
        except KeyError:
            pass
    for name in _PREFERRED:
        try:
            return _drop_to(pwd.getpwnam(name))
        except KeyError:
            continue
    raise EmbeddedError(
        "Running as root, and there is no unprivileged account to run the services under. "
        "Create a user named postgres, or start as an ordinary user."
    )


def _drop_to(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_uid, entry.pw_gid, drops=True)
