"""Which leases this worker holds, and how much of each is left: shared by its threads."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from runner.domain.leases import Lease, ShardKey


@dataclass(slots=True)
class _Held:
    lease: Lease
    left: int
    started: bool = False
    is_winding_up: bool = False


class LeaseBook:
    """The leases in hand. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[ShardKey, _Held] = {}

    def add(self, lease: Lease, lines: int) -> None:
        """A lease was taken; ``lines`` of it are still to run."""
        with self._lock:
            self._held[lease.key] = _Held(lease, lines)

    def start(self, key: ShardKey) -> bool:
        """A line of a lease enters the engine. False: it may not, for the lease is going."""
        with self._lock:
            held = self._held.get(key)
            if held is None or held.is_winding_up:
                return False
            held.started = True
            return True

    def wind_up(self, keys: Iterable[ShardKey]) -> set[ShardKey]:
        """Let no more lines of these enter the engine; returns those for which that is news."""
        with self._lock:
            held = [self._held[key] for key in keys if key in self._held]
            news = [each for each in held if not each.is_winding_up]
            for each in news:
                each.is_winding_up = True
            return {each.lease.key for each in news}

    def finish(self, keys: Iterable[ShardKey]) -> None:
        """One line of each lease was committed (a key may come several times)."""
        with self._lock:
            for key in keys:
                if key in self._held:
                    self._held[key].left -= 1

    def drop(self, keys: Iterable[ShardKey]) -> set[ShardKey]:
        """Hold these no more; returns those that were held."""
        with self._lock:
            return {key for key in keys if self._held.pop(key, None) is not None}

    def drop_unstarted(self, above: int) -> set[ShardKey]:
        """Hold no more what no line of has begun and whose priority is at most ``above``."""
        with self._lock:
            keys = {
                key
                for key, held in self._held.items()
                if not held.started and held.lease.priority <= above
            }
            for key in keys:
                del self._held[key]
            return keys

    def reprioritise(self, priorities: Mapping[ShardKey, int]) -> set[ShardKey]:
        """Note the present priorities of jobs. Leases that have not begun and whose priority has
        changed are dropped and returned, to be leased anew with the new one."""
        with self._lock:
            dropped = set()
            for key, priority in priorities.items():
                held = self._held.get(key)
                if held is None or held.lease.priority == priority:
                    continue
                if held.started:
                    held.lease = replace(held.lease, priority=priority)
                else:
                    del self._held[key]
                    dropped.add(key)
            return dropped

    def lines_above(self, priority: int) -> int:
        """Lines in hand of a higher priority that have no result yet."""
        with self._lock:
            return sum(held.left for held in self._held.values() if held.lease.priority > priority)

    def keys(self) -> set[ShardKey]:
        """The leases in hand."""
        with self._lock:
            return set(self._held)

    @property
    def lines(self) -> int:
        """Lines in hand that have no result yet."""
        with self._lock:
            return sum(held.left for held in self._held.values())

    @property
    def has_suspect(self) -> bool:
        """Whether a suspect shard is in hand: then nothing else may be."""
        with self._lock:
            return any(held.lease.suspect for held in self._held.values())
