"""Addresses of files in folders and buckets, with the date of a run in their names."""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from zoneinfo import ZoneInfo

from runner.domain.errors import InvalidRequest

SCHEMES = ("file", "s3", "gs", "az")
LONGEST_ADDRESS = 1024
_DIRECTIVES = "YmdHMj"
_DIRECTIVE = re.compile("%(.?)", re.DOTALL)
_START = re.compile(rf"({'|'.join(SCHEMES)})://([^/]*)/(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Address:
    """``scheme://bucket/path``; the bucket of a local file is empty.

    The path may hold %Y, %m, %d, %H, %M and %j, as in strftime; %% is a per cent sign.
    """

    scheme: str
    bucket: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.path}"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def at(self, moment: datetime, zone: ZoneInfo) -> "Address":
        """The address of a run, with the date that the clock of a zone shows then."""
        shown = moment.astimezone(zone)
        path = _DIRECTIVE.sub(
            lambda found: "%" if found[1] == "%" else shown.strftime(found[0]), self.path
        )
        return Address(self.scheme, self.bucket, path)

    def beside(self, ending: str) -> "Address":
        """The address of a file of the same name with another ending, such as ``.errors.jsonl``."""
        path = PurePosixPath(self.path)
        return Address(self.scheme, self.bucket, str(path.with_name(path.stem + ending)))

    def within(self, root: "Address") -> str | None:
        """The path below a folder, or None where it lies elsewhere."""
        same = (self.scheme, self.bucket) == (root.scheme, root.bucket)
        below = root.path.rstrip("/") + "/"
        return self.path[len(below) :] if same and self.path.startswith(below) else None


def parse_address(text: str, param: str) -> Address:
    """Read an address; a plain absolute path is one of a local file.

    Raises:
        InvalidRequest: it is no address, leads upwards, or has a directive that is not known.
    """
    found = _START.fullmatch("file://" + text if text.startswith("/") else text)
    if found is None or len(text) > LONGEST_ADDRESS or not text.isprintable():
        raise InvalidRequest(
            f"{param} is an address such as s3://bucket/in/%Y-%m-%d.jsonl or "
            "file:///srv/in/%Y-%m-%d.jsonl.",
            param=param,
        )
    address = Address(*found.groups())
    if (address.scheme == "file") != (not address.bucket):
        raise InvalidRequest(
            f"{param}: a file:// address has three slashes, others have a bucket.", param=param
        )
    if not {"", ".", ".."}.isdisjoint(address.path.split("/")):
        raise InvalidRequest(f"{param} must not hold empty parts, '.' or '..'.", param=param)
    for directive in _DIRECTIVE.findall(address.path):
        if directive not in (*_DIRECTIVES, "%"):
            raise InvalidRequest(
                f"{param}: %{directive} is not known; there are "
                f"{', '.join(f'%{letter}' for letter in _DIRECTIVES)} and %%.",
                param=param,
            )
    return address
