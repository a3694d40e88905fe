"""Folders and buckets: where runs of schedules find their input and leave their output.

Only what lies below a root among the setting ``places`` is reached. A root may hold ``{project}``,
so that each project has a part of its own. Credentials of buckets are found as their vendors' own
tools find them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from runner.domain.addresses import Address, parse_address
from runner.domain.errors import InvalidRequest, NotFound, TooLarge, Unavailable

_PIECE_BYTES = 4 * 1024**2
_PROJECT = "{project}"
_REQUEST_SECONDS, _CONNECT_SECONDS = "60s", "5s"
_RETRIES, _RETRY_TIME = 2, timedelta(seconds=20)


@dataclass(frozen=True, slots=True)
class Stores:
    """What one project may reach. ``roots`` are those of the settings."""

    roots: tuple[str, ...]
    project: str

    def check(self, address: Address, param: str) -> None:
        """See that an address lies below a root.

        Raises:
            InvalidRequest: it does not; the text says which setting would allow it.
        """
        if self._root_of(address) is None:
            raise InvalidRequest(
                f"{param}: {address} is in no folder or bucket that this installation allows; its "
                "operator lists them in TOKENMILL_PLACES.",
                code="store_not_allowed",
                param=param,
            )

    def read(self, address: Address, max_bytes: int) -> Iterator[bytes]:
        """The bytes of a file, piece by piece; a file that changes meanwhile is not mixed.

        Raises:
            NotFound, TooLarge: there is none, or it has more than ``max_bytes``; before the first
                piece.
            Unavailable: it cannot be read now.
        """
        with _told(address):
            store, path = self._open(address)
            meta = obstore.head(store, path)
            if meta["size"] > max_bytes:
                raise TooLarge(
                    f"{address} is larger than {max_bytes:,} bytes; split it.",
                    code="file_too_large",
                )
            for start in range(0, meta["size"], _PIECE_BYTES):
                end = min(start + _PIECE_BYTES, meta["size"])
                found = obstore.get(
                    store, path, options={"range": (start, end), "if_match": meta["e_tag"]}
                )
                yield bytes(found.bytes())

    def write(self, address: Address, pieces: Iterable[bytes]) -> None:
        """Write a file whole or not at all, over one of the same name.

        Raises:
            Unavailable: it cannot be written now.
        """
        with _told(address):
            store, path = self._open(address)
            size, most = 2 * _PIECE_BYTES, 4  # of a part, and of parts under way
            obstore.put(store, path, _joined(pieces), chunk_size=size, max_concurrency=most)

    def remove(self, address: Address) -> None:
        """See that there is no such file."""
        with suppress(NotFound), _told(address):
            obstore.delete(*self._open(address))

    def _open(self, address: Address) -> tuple[ObjectStore, str]:
        self.check(address, "address")
        if address.scheme != "file":
            store = from_url(
                f"{address.scheme}://{address.bucket}",
                client_options={
                    "timeout": _REQUEST_SECONDS,
                    "connect_timeout": _CONNECT_SECONDS,
                    "allow_http": True,  # where an endpoint within the house is set
                },
                retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_TIME},
            )
            return store, address.path
        root = self._root_of(address)
        assert root is not None
        folder, below = Path("/" + root.path).resolve(), address.within(root)
        assert below is not None
        if not (folder / below).resolve().is_relative_to(folder):
            raise NotFound(f"{address} leads out of its folder by a link.")
        return LocalStore(prefix=folder), below

    def _root_of(self, address: Address) -> Address | None:
        for text in self.roots:
            if _PROJECT in text and not _is_plain(self.project):
                continue
            root = parse_address(text.replace(_PROJECT, self.project).rstrip("/"), "stores")
            if address.within(root) is not None:
                return root
        return None


def _is_plain(project: str) -> bool:
    """Whether a project's name is one part of a path, and no pattern."""
    return project not in (".", "..") and not {"/", "\\", "%"} & set(project)


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Lines put together, so that the store is not called for each."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= _PIECE_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


@contextmanager
def _told(address: Address) -> Iterator[None]:
    """Turn what a store raises into what it means; its first line says enough."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"There is no file {address}.") from None
    except (BaseError, OSError, ValueError) as error:
        cause = str(error).partition("\n")[0]
        raise Unavailable(
            f"{address} cannot be reached: {cause}", code="store_unreachable"
        ) from None
