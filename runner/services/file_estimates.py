"""The estimate of a file without a job: read once as a stream, counted, and forgotten."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy.orm import Session

from runner.config import Settings
from runner.db.session import SessionFactory
from runner.domain.counts import Count, LineCounter, LineKind, OpenCounter
from runner.domain.defaults import Defaults, check_defaults
from runner.domain.errors import InvalidRequest, NotFound, TooLarge
from runner.domain.estimate import Estimate, Volume, estimate
from runner.domain.estimate_sums import together
from runner.domain.ids import FileId, ModelId, ProjectId
from runner.domain.intake import Accepted, Intake, LineFault
from runner.domain.leases import ItemInput
from runner.domain.lines import ENDPOINTS, RawLine, split_lines, url_of
from runner.domain.outlines import Sketch
from runner.domain.sharding import PrefixKeys
from runner.services.files import get_file, read_file
from runner.services.job_estimates import bytes_per_token
from runner.services.models import ModelRecord, get_model, price_now
from runner.services.output_lengths import read_lengths
from runner.services.speeds import measure

PATIENCE_SECONDS = 20.0
"""How long the prompts of one file are counted; what is left is estimated by its bytes."""
TOO_LONG_SHOWN = 100
FAULTS_SHOWN = 20
_WINDOW_LINES, _WINDOW_BYTES = 2_048, 16 * 1024**2  # put in prefix order together
_COUNTED_AT_ONCE = 256

FindModel = Callable[[str], ModelRecord | None]


@dataclass(frozen=True, slots=True)
class Question:
    """What a file is to be estimated as. Without an endpoint, the url of its first line counts."""

    project_id: ProjectId
    endpoint: str | None = None
    defaults: bytes | None = None
    patience_seconds: float = PATIENCE_SECONDS


@dataclass(frozen=True, slots=True)
class FileEstimate:
    """What a file would take as a job.

    Attributes:
        endpoint: which one its lines are for.
        models: the models that they name, by name.
        counted: how many lines were counted; the estimate is exact if these are all.
        too_long: lines whose prompt leaves no room for an answer, ``too_long_lines`` their numbers
            (from 1, without blank lines; the first hundred).
        refused: lines that the model would refuse for another reason.
        equal: lines equal to an earlier one, which a job with ``dedupe`` would not compute.
        fault_count: faults that reading the file would find, ``faults`` the first of them.
    """

    endpoint: str
    models: tuple[str, ...]
    estimate: Estimate
    counted: int
    too_long: int
    too_long_lines: tuple[int, ...]
    refused: int
    equal: int
    fault_count: int
    faults: tuple[LineFault, ...]


class FileEstimator:
    """Estimates files of projects with the models of the registry; keeps nothing of them."""

    def __init__(
        self, sessions: SessionFactory, settings: Settings, open_counter: OpenCounter
    ) -> None:
        self._sessions = sessions
        self._settings = settings
        self._open_counter = open_counter

    def stored(self, file_id: FileId, question: Question) -> FileEstimate:
        """The estimate of a file that was uploaded before."""
        with self._sessions() as session:
            file = get_file(session, question.project_id, file_id)
        return self.sent(read_file(self._sessions, file.id), question)

    def sent(self, pieces: Iterable[bytes], question: Question) -> FileEstimate:
        """The estimate of a file that arrives now, read to its end.

        Raises:
            InvalidRequest: the endpoint or the defaults are wrong, or no line could run.
            TooLarge: it has more bytes or lines than a job may have.
        """
        check_defaults(question.defaults)
        if question.endpoint not in (None, *ENDPOINTS):
            raise InvalidRequest(
                f"endpoint must be one of {', '.join(ENDPOINTS)}.", param="endpoint"
            )
        lines = split_lines(self._bounded(pieces), self._settings.max_line_bytes)
        first = next(lines, None)
        if first is None:
            raise InvalidRequest("The file has no line to run.", code="empty_file", param="file")
        endpoint = question.endpoint or url_of(first.data) or ENDPOINTS[0]
        kind = LineKind(endpoint, Defaults(question.defaults))
        reading = _Reading(self._settings, self._find_model, question, kind)
        for line in _chained(first, lines):
            reading.take(line, self._open_counter)
        with self._sessions() as session:
            return reading.answer(session, question.project_id, self._open_counter)

    def _bounded(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        size, most = 0, self._settings.max_file_bytes
        for piece in pieces:
            size += len(piece)
            if size > most:
                raise TooLarge(
                    f"The file is larger than {most:,} bytes; split it.",
                    code="file_too_large",
                    param="file",
                )
            yield piece

    def _find_model(self, name: str) -> ModelRecord | None:
        try:
            with self._sessions() as session:
                return get_model(session, name)
        except NotFound:
            return None


@dataclass(slots=True)
class _Window:
    """Accepted lines on their way to the counters, put in prefix order as a job's shards are."""

    items: list[tuple[ModelId, ItemInput]] = field(default_factory=list)
    keys: PrefixKeys = field(default_factory=PrefixKeys)
    size: int = 0

    def add(self, model_id: ModelId, item: ItemInput) -> bool:
        """Take in a line; True once it is full."""
        self.items.append((model_id, item))
        self.keys.add(item.data)
        self.size += len(item.data)
        return len(self.items) == _WINDOW_LINES or self.size >= _WINDOW_BYTES

    def ordered(self) -> dict[ModelId, list[ItemInput]]:
        """The lines of each model as they would run."""
        found: dict[ModelId, list[ItemInput]] = {}
        for place in self.keys.order().tolist():
            model_id, item = self.items[place]
            found.setdefault(model_id, []).append(item)
        return found


@dataclass(slots=True)
class _Counted:
    """What was counted of one model's lines."""

    model: ModelRecord
    count: Count = field(default_factory=Count)
    too_long: list[int] = field(default_factory=list)
    last: ItemInput | None = None

    def add(self, counter: LineCounter, kind: LineKind, items: Sequence[ItemInput]) -> None:
        """Count some more of them, in the order in which they run."""
        for start in range(0, len(items), _COUNTED_AT_ONCE):
            part = items[start : start + _COUNTED_AT_ONCE]
            count = counter.count(kind, part, self.last)
            self.too_long += count.too_long_idx
            self.count += count
            self.last = part[-1]


class _Reading:
    """One pass over one file."""

    def __init__(
        self, settings: Settings, find_model: FindModel, question: Question, kind: LineKind
    ) -> None:
        self._find_model = find_model
        self._kind = kind
        self._max_lines = settings.max_job_lines
        self._intake = Intake(
            kind.endpoint,
            settings.max_line_bytes,
            self._model_id,
            kind.defaults,
            seeks_equals=True,
        )
        self._found: dict[ModelId, _Counted] = {}
        self._window = _Window()
        self._is_late = False
        self._counted: dict[ModelId, Sketch] = {}  # of what was counted when the time was over
        self._end_at = time.monotonic() + question.patience_seconds

    def take(self, line: RawLine, open_counter: OpenCounter) -> None:
        """Read a line, and count a window of them when one is full."""
        if self._intake.total == self._max_lines:
            raise TooLarge(
                f"The file has more than {self._max_lines:,} lines; split it.",
                code="too_many_tasks",
                param="file",
            )
        read = self._intake.read(line)
        if not isinstance(read, Accepted) or self._is_late:
            return
        if self._window.add(read.model_id, ItemInput(read.idx, read.custom_id, line.data)):
            self._count_window(open_counter)

    def _count_window(self, open_counter: OpenCounter) -> None:
        """Count the lines in hand; no more follow once the time is over."""
        window, self._window = self._window, _Window()
        for model_id, items in window.ordered().items():
            counted = self._found[model_id]
            counter = open_counter(counted.model.path, counted.model.context_length)
            counted.add(counter, self._kind, items)
        if window.items and time.monotonic() >= self._end_at:
            self._is_late = True
            lines = self._intake.models.items()
            self._counted = {model_id: replace(each.sketch) for model_id, each in lines}

    def answer(
        self, session: Session, project_id: ProjectId, open_counter: OpenCounter
    ) -> FileEstimate:
        """The estimate, once all lines are read."""
        self._count_window(open_counter)
        for _ in self._intake.duplicates():  # they are faults, too
            pass
        if not self._intake.models:
            fault = self._intake.faults[0]
            raise InvalidRequest(
                f"No line of the file could run. Line {fault.line}: {fault.message}",
                param="file",
            )
        found = [self._found[model_id] for model_id in self._intake.models]
        count = sum((each.count for each in found), start=Count())
        too_long = sorted(idx for each in found for idx in each.too_long)
        return FileEstimate(
            endpoint=self._kind.endpoint,
            models=tuple(sorted(each.model.name for each in found)),
            estimate=together([self._estimate(session, project_id, each) for each in found]),
            counted=count.lines + count.too_long + count.refused,
            too_long=count.too_long,
            too_long_lines=tuple(idx + 1 for idx in too_long[:TOO_LONG_SHOWN]),
            refused=count.refused,
            equal=sum(len(lines.twins) for _, lines in self._intake.equals()),
            fault_count=self._intake.fault_count,
            faults=tuple(self._intake.faults[:FAULTS_SHOWN]),
        )

    def _estimate(self, session: Session, project_id: ProjectId, found: _Counted) -> Estimate:
        """What the lines of one model would take."""
        model_id = found.model.id
        pace = measure(session, model_id)
        return estimate(
            self._volume(session, project_id, found),
            price_now(session, model_id),
            read_lengths(session, project_id, model_id, None),
            None if pace is None else pace.after_all(),
        )

    def _volume(self, session: Session, project_id: ProjectId, found: _Counted) -> Volume:
        """What was counted, and the rest by its bytes."""
        model, counted = found.model, found.count.volume()
        if not self._is_late:
            return counted
        sketch = self._counted.get(model.id, Sketch())
        rest = self._intake.models[model.id].sketch.without(sketch)
        if not rest.lines:
            return counted
        by_bytes = bytes_per_token(session, project_id, model.id)
        if counted.input_tokens:
            by_bytes = sketch.prompt_bytes / counted.input_tokens
        return counted.plus(rest.volume(model.context_length, by_bytes))

    def _model_id(self, name: str) -> ModelId | None:
        model = self._find_model(name)
        if model is None:
            return None
        self._found.setdefault(model.id, _Counted(model))
        return model.id


def _chained(first: RawLine, others: Iterator[RawLine]) -> Iterator[RawLine]:
    yield first
    yield from others
