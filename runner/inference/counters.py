"""The counters of the models that a process has counted with, kept for the next time."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from runner.domain.counts import Count, LineCounter, LineKind
from runner.domain.leases import ItemInput
from runner.inference import open_counter

_KEPT = 4  # a tokenizer takes some tens of megabytes


class Counters:
    """Opens each model's counter once; any thread may ask, and one at a time counts with it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._opened: OrderedDict[tuple[str, int], LineCounter] = OrderedDict()

    def open(self, path: str, context: int) -> LineCounter:
        """The counter of the model of a path that holds ``context`` tokens."""
        with self._lock:
            key = (path, context)
            counter = self._opened.pop(key, None) or _InTurn(open_counter(path, context))
            self._opened[key] = counter
            if len(self._opened) > _KEPT:
                self._opened.popitem(last=False)
            return counter


class _InTurn:
    """A counter that threads share."""

    def __init__(self, counter: LineCounter) -> None:
        self._counter = counter
        self._lock = Lock()

    def count(
        self, kind: LineKind, lines: Sequence[ItemInput], before: ItemInput | None = None
    ) -> Count:
        with self._lock:
            return self._counter.count(kind, lines, before)
