"""What one pass over a job's file gathers: accepted lines, faults, duplicates, and the order.

It holds 28 bytes a line (custom id hash, prefix keys, two numbers) and at most 1,000 faults, so a
file of any size fits. Where the lines come from and go to is not its business.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from runner.domain.defaults import NO_DEFAULTS, Defaults
from runner.domain.ids import ModelId
from runner.domain.lines import LineError, ParsedLine, RawLine, parse_line
from runner.domain.outlines import Sketch
from runner.domain.sharding import PrefixKeys, shards_of

FAULTS_KEPT = 1000
_MODEL_NAME_LETTERS = 200  # a longer name names nothing, and is neither looked up nor kept


@dataclass(frozen=True, slots=True)
class LineFault:
    """One fault found in a job's file; ``line`` counts from 1, None for the file as such."""

    code: str
    message: str
    line: int | None
    param: str | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A line that will run."""

    idx: int
    custom_id: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A line that cannot run; its custom id is None where it could not be read."""

    idx: int
    custom_id: str | None
    fault: LineFault


class Intake:
    """One pass over one file. Lines are numbered ``idx`` 0, 1, 2, … without the blank ones."""

    def __init__(
        self,
        endpoint: str,
        max_line_bytes: int,
        find_model: Callable[[str], ModelId | None],
        defaults: Defaults = NO_DEFAULTS,
    ) -> None:
        self.faults: list[LineFault] = []
        self.fault_count = 0
        self.total = 0
        self.model_id: ModelId | None = None
        self.sketch = Sketch()
        self._model_name = ""
        self._endpoint = endpoint
        self._max_line_bytes = max_line_bytes
        self._find_model = find_model
        self._defaults = defaults
        self._models: dict[str, ModelId | None] = {}
        self._keys = PrefixKeys()
        self._idx = array("i")
        self._line_numbers = array("i")
        self._custom_ids = array("Q")
        self._duplicates = array("i")

    def read(self, line: RawLine) -> Accepted | Refused:
        """Check the next line."""
        idx = self.total
        self.total += 1
        custom_id = None
        try:
            parsed = parse_line(line.data, self._endpoint, self._max_line_bytes, self._defaults)
            custom_id = parsed.custom_id
            self._check_model(parsed.model)
        except LineError as error:
            custom_id = custom_id or error.custom_id
            return Refused(idx, custom_id, self.add_fault(error, line.number))
        self._note(idx, line.number, parsed)
        return Accepted(idx, custom_id, line.offset, len(line.data))

    def add_fault(self, error: LineError, line: int | None = None) -> LineFault:
        """Count a fault, and keep it while there is room."""
        fault = LineFault(error.code, error.message, line, error.param)
        self.fault_count += 1
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(fault)
        return fault

    def duplicates(self) -> Iterator[tuple[int, LineFault]]:
        """Once all is read: each line whose custom id an earlier line had, with its ``idx``.

        Ids are compared by 64-bit hashes (BLAKE2b), found by one stable sort. The iterator must
        be read to its end before ``shards``.
        """
        hashes = np.frombuffer(self._custom_ids, dtype=np.uint64)
        order = np.argsort(hashes, kind="stable")
        is_again = np.zeros(len(hashes), dtype=bool)
        is_again[1:] = hashes[order][1:] == hashes[order][:-1]
        first = np.maximum.accumulate(np.where(is_again, 0, np.arange(len(hashes))))
        for place in np.flatnonzero(is_again).tolist():
            position = int(order[place])
            error = LineError(
                "duplicate_custom_id",
                f"custom_id was already used on line {self._line_numbers[order[first[place]]]}.",
                "custom_id",
            )
            self._duplicates.append(position)
            yield self._idx[position], self.add_fault(error, self._line_numbers[position])
        self.faults.sort(key=lambda fault: fault.line or 0)

    def shards(self, shard_lines: int) -> Iterator[tuple[int, list[int]]]:
        """The accepted lines in prefix order, cut into numbered shards."""
        order = self._keys.order()
        if self._duplicates:
            order = order[~np.isin(order, self._duplicates)]
        idx = np.frombuffer(self._idx, dtype=np.int32).astype(np.int64)
        return shards_of(idx[order], shard_lines)

    def _check_model(self, name: str) -> None:
        model_id = self._model_of(name)
        if model_id is None:
            raise LineError("model_not_found", f"There is no model {name[:100]!r}.", "body.model")
        if self.model_id is None:
            self.model_id, self._model_name = model_id, name
        elif model_id != self.model_id:
            raise LineError(
                "model_mismatch",
                f"Earlier lines name the model {self._model_name!r}; a file has one model.",
                "body.model",
            )

    def _model_of(self, name: str) -> ModelId | None:
        if len(name) > _MODEL_NAME_LETTERS or not name.isprintable():
            return None
        if name not in self._models:
            self._models[name] = self._find_model(name)
        return self._models[name]

    def _note(self, idx: int, number: int, parsed: ParsedLine) -> None:
        self._keys.add(parsed.prompt)
        self.sketch.add(parsed.outline)
        self._idx.append(idx)
        self._line_numbers.append(number)
        digest = hashlib.blake2b(parsed.custom_id.encode(), digest_size=8).digest()
        self._custom_ids.append(int.from_bytes(digest))
