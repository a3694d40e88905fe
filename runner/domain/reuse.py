"""Which lines must get the same answer, so that one is computed and answers for the others.

The key of a line is a hash of its endpoint and of its body as it will run, defaults under it. Two
bodies are the same if their fields are, in whatever order the fields stand; inside a field the
order counts, for a schema's order is that of the answer. Only lines whose answer does not hang on
chance have a key: embeddings, temperature 0, or a seed of their own.
"""

import hashlib
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

KEY_BYTES = 16
_EMBEDDINGS = "/v1/embeddings"

Places = npt.NDArray[np.int64]

_body_decoder = msgspec.json.Decoder(dict[str, Any])


class Dedupe(StrEnum):
    """How far a job's lines look for an equal one: not at all, in the job, or in the project."""

    OFF = "off"
    JOB = "job"
    PROJECT = "project"


def answer_key(endpoint: str, body: msgspec.Raw) -> bytes | None:
    """The key of a line's answer; None where chance has a part in it.

    ``body`` is a JSON object that the line's parser has passed.
    """
    fields = _body_decoder.decode(body)
    if endpoint != _EMBEDDINGS and not _is_determined(fields):
        return None
    ordered = dict(sorted(fields.items()))
    written = msgspec.json.encode([endpoint, ordered])
    return hashlib.blake2b(written, digest_size=KEY_BYTES).digest()


def _is_determined(fields: dict[str, Any]) -> bool:
    if isinstance(fields.get("seed"), int):
        return True
    temperature = fields.get("temperature")
    return isinstance(temperature, int | float) and temperature == 0


@dataclass(frozen=True, slots=True)
class Equals:
    """The lines of a job by their keys, as positions: the first of each key, and its twins.

    ``firsts[n]`` has the key ``keys[n]``; ``twins[m]`` is equal to the first ``twin_of[m]``.
    """

    firsts: Places
    keys: list[bytes]
    twins: Places
    twin_of: Places

    def places(self) -> tuple[Places, Places, Places]:
        """All lines of it: the firsts, the twins, and whose these are."""
        return self.firsts, self.twins, self.twin_of


class AnswerKeys:
    """The keys of a job's lines, 20 bytes a line, collected while the file streams by."""

    def __init__(self) -> None:
        self._places = array("i")
        self._keys = bytearray()

    def add(self, place: int, key: bytes | None) -> None:
        """Note the key of the line at a place, if it has one."""
        if key is not None:
            self._places.append(place)
            self._keys += key

    def equals(self, left_out: Collection[int] = ()) -> Equals:
        """Who is equal to whom, but for the lines at some places; found by one stable sort."""
        places = np.frombuffer(self._places, dtype=np.int32).astype(np.int64)
        halves = np.frombuffer(self._keys, dtype=np.uint64).reshape(-1, 2)
        if left_out:
            kept = ~np.isin(places, np.fromiter(left_out, dtype=np.int64))
            places, halves = places[kept], halves[kept]
        order = np.lexsort((halves[:, 1], halves[:, 0]))
        places, halves = places[order], halves[order]
        is_again = np.zeros(len(places), dtype=bool)
        is_again[1:] = (halves[1:] == halves[:-1]).all(axis=1)
        first = np.maximum.accumulate(np.where(is_again, 0, np.arange(len(places))))
        return Equals(
            firsts=places[~is_again],
            keys=[half.tobytes() for half in halves[~is_again]],
            twins=places[is_again],
            twin_of=places[first[is_again]],
        )
