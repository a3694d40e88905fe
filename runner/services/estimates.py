"""What jobs will take: guessed at a glance."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from runner.db.models import FileChunk
from runner.domain.defaults import Defaults
from runner.domain.errors import NotFound
from runner.domain.estimate import Estimate, estimate
from runner.domain.estimate_sums import together
from runner.domain.ids import FileId, ProjectId
from runner.domain.lines import LineError, ParsedLine, parse_line, split_lines
from runner.domain.outlines import Sketch
from runner.domain.reuse import Dedupe, answer_key
from runner.services.files import CHUNK_BYTES, visible_file
from runner.services.job_estimates import bytes_per_token
from runner.services.models import ModelRecord, get_model, price_now
from runner.services.output_lengths import read_lengths


@dataclass(frozen=True, slots=True)
class Order:
    """The work that is asked about: a file of a project, as a job would run it."""

    project_id: ProjectId
    file_id: FileId
    endpoint: str
    defaults: bytes | None = None
    schedule_id: UUID | None = None  # whose history counts first
    dedupe: Dedupe = Dedupe.OFF


def quick(session: Session, order: Order) -> Estimate | None:
    """An estimate at a glance, from the first mebibyte of a file that nobody has read yet.

    It takes milliseconds. Upper bounds hold if the rest of the file is like its beginning. None if
    no line in there could run: reading the file will say why.
    """
    file = visible_file(session, order.project_id, order.file_id)
    chunk = session.scalars(
        select(FileChunk.data).where(FileChunk.file_id == file.id, FileChunk.chunk_no == 0)
    ).one_or_none()
    glance = _Glance(order)
    seen = glance.read(bytes(chunk or b""), file.size)
    parts = [
        _guess(session, order, model, sketch.scaled(seen, file.size))
        for name, sketch in glance.sketches.items()
        if (model := _model_of(session, name)) is not None
    ]
    return together(parts) if parts else None


def _guess(session: Session, order: Order, model: ModelRecord, sketch: Sketch) -> Estimate:
    by_bytes = bytes_per_token(session, order.project_id, model.id)
    volume = sketch.volume(model.context_length, by_bytes)
    lengths = read_lengths(session, order.project_id, model.id, order.schedule_id)
    return estimate(volume, price_now(session, model.id), lengths, None)


class _Glance:
    """The lines at the beginning of a file, by the models that they name; of equal ones that a job
    computes once, the first."""

    def __init__(self, order: Order) -> None:
        self.sketches: dict[str, Sketch] = {}
        self._endpoint = order.endpoint
        self._defaults = Defaults(order.defaults)
        self._known: set[bytes] | None = None if order.dedupe is Dedupe.OFF else set()

    def read(self, data: bytes, size: int) -> int:
        """Sketch the whole lines of a file's first bytes; returns how many bytes they are."""
        seen = 0
        whole = data if size <= len(data) else data[: data.rfind(b"\n") + 1]
        for line in split_lines(_pieces(whole), CHUNK_BYTES):
            seen = line.offset + len(line.data) + 1
            try:
                parsed = parse_line(line.data, self._endpoint, CHUNK_BYTES, self._defaults)
            except LineError:
                continue
            sketch = self.sketches.setdefault(parsed.model, Sketch())
            if self._is_new(parsed):
                sketch.add(parsed.outline)
        return seen

    def _is_new(self, line: ParsedLine) -> bool:
        key = None if self._known is None else answer_key(self._endpoint, line.body)
        if self._known is None or key is None:
            return True
        is_new = key not in self._known
        self._known.add(key)
        return is_new


def _pieces(data: bytes) -> Iterator[bytes]:
    yield data


def _model_of(session: Session, name: str) -> ModelRecord | None:
    if not name.isprintable():
        return None
    try:
        return get_model(session, name)
    except NotFound:
        return None
