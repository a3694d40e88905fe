"""What one pass over a job's file gathers: accepted lines, faults, duplicates, and the order.

It holds 32 bytes a line (custom id hash, prefix keys, three numbers), 20 more where it looks for
equal lines, and at most 1,000 faults, so a file of any size fits. Where the lines come from and go
to is not its business.
"""

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from runner.domain.defaults import NO_DEFAULTS, Defaults
from runner.domain.ids import ModelId
from runner.domain.lines import LineError, ParsedLine, RawLine, parse_line
from runner.domain.outlines import Sketch
from runner.domain.reuse import AnswerKeys, Equals, Places, answer_key
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
    model_id: ModelId


@dataclass(frozen=True, slots=True)
class Refused:
    """A line that cannot run; its custom id is None where it could not be read."""

    idx: int
    custom_id: str | None
    fault: LineFault


@dataclass(slots=True)
class ModelLines:
    """The accepted lines that name one model; ``places`` are theirs among all accepted ones."""

    sketch: Sketch = field(default_factory=Sketch)
    keys: PrefixKeys = field(default_factory=PrefixKeys)
    places: "array[int]" = field(default_factory=lambda: array("I"))
    answers: AnswerKeys = field(default_factory=AnswerKeys)

    def add(self, place: int, line: ParsedLine) -> None:
        """Note the next of them."""
        self.places.append(place)
        self.keys.add(line.prompt)
        self.sketch.add(line.outline)


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard as it will be written: lines of one model, by their ``idx``, in prefix order.

    The lines of one that ``follows`` take the answers of others.
    """

    shard_no: int
    model_id: ModelId
    idx: list[int]
    follows: bool = False


class Intake:
    """One pass over one file. Lines are numbered ``idx`` 0, 1, 2, … without the blank ones."""

    def __init__(
        self,
        endpoint: str,
        max_line_bytes: int,
        find_model: Callable[[str], ModelId | None],
        defaults: Defaults = NO_DEFAULTS,
        seeks_equals: bool = False,
    ) -> None:
        self.faults: list[LineFault] = []
        self.fault_count = 0
        self.total = 0
        self.models: dict[ModelId, ModelLines] = {}
        self._endpoint = endpoint
        self._max_line_bytes = max_line_bytes
        self._find_model = find_model
        self._defaults = defaults
        self._seeks_equals = seeks_equals
        self._models: dict[str, ModelId | None] = {}
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
            model_id = self._model_of(parsed.model)
        except LineError as error:
            custom_id = custom_id or error.custom_id
            return Refused(idx, custom_id, self.add_fault(error, line.number))
        lines = self.models.setdefault(model_id, ModelLines())
        lines.add(len(self._idx), parsed)
        if self._seeks_equals:
            lines.answers.add(len(self._idx), answer_key(self._endpoint, parsed.body))
        self._note(idx, line.number, custom_id)
        return Accepted(idx, custom_id, line.offset, len(line.data), model_id)

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

    def equals(self) -> Iterator[tuple[ModelId, Equals]]:
        """Which accepted lines of each model are equal, by their ``idx``."""
        for model_id, lines in self.models.items():
            found, idx = lines.answers.equals(self._duplicates), self._numbers()
            firsts, twins, twin_of = (idx[each] for each in found.places())
            yield model_id, Equals(firsts, found.keys, twins, twin_of)

    def shards(self, shard_lines: int, copies: Collection[int] = ()) -> Iterator[PlannedShard]:
        """The accepted lines, model by model in the order in which the file names them, each
        model's in prefix order, cut into numbered shards; after all of these the copies."""
        shard_no = 0
        for follows in (False, True) if copies else (False,):
            for model_id, lines in self.models.items():
                idx = self._in_order(lines)
                if copies:
                    is_copy = np.isin(idx, np.fromiter(copies, dtype=np.int64))
                    idx = idx[is_copy == follows]
                for part in shards_of(idx, shard_lines):
                    yield PlannedShard(shard_no, model_id, part, follows)
                    shard_no += 1

    def _in_order(self, lines: ModelLines) -> Places:
        """The lines of a model (``idx``) in prefix order."""
        places = np.frombuffer(lines.places, dtype=np.uint32)[lines.keys.order()]
        if self._duplicates:
            places = places[~np.isin(places, self._duplicates)]
        return self._numbers()[places]

    def _numbers(self) -> Places:
        """The ``idx`` of all accepted lines."""
        return np.frombuffer(self._idx, dtype=np.int32).astype(np.int64)

    def _model_of(self, name: str) -> ModelId:
        model_id = None
        if len(name) <= _MODEL_NAME_LETTERS and name.isprintable():
            if name not in self._models:
                self._models[name] = self._find_model(name)
            model_id = self._models[name]
        if model_id is None:
            raise LineError("model_not_found", f"There is no model {name[:100]!r}.", "body.model")
        return model_id

    def _note(self, idx: int, number: int, custom_id: str) -> None:
        self._idx.append(idx)
        self._line_numbers.append(number)
        digest = hashlib.blake2b(custom_id.encode(), digest_size=8).digest()
        self._custom_ids.append(int.from_bytes(digest))
