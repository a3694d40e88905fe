"""What a Chrome trace of an engine's steps says: where the time of a step goes.

The trace is torch.profiler's: complete events (``ph`` "X") with microseconds. The engine names its
stretches ``tokenmill.step``, ``tokenmill.run N tokens M rows``, ``tokenmill.sampling`` and
``tokenmill.attention``, and ``tokenmill.fused layers`` where one call in C++ is the whole forward;
time on the host is each event's own, without that of the events inside it.
"""

import gzip
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from runner.domain.errors import InvalidRequest

ATTENTION, MATRIX, SAMPLING = "attention", "matrix products", "sampling"
FUSED = "fused layers"
OTHER, HOST = "other operations", "host Python"
_STEP, _RUN = "tokenmill.step", "tokenmill.run "
_STRETCHES = {
    "tokenmill.attention": ATTENTION,
    "tokenmill.sampling": SAMPLING,
    "tokenmill.fused layers": FUSED,
}
_PRODUCTS = ("::mm", "::addmm", "::bmm", "::baddbmm", "::linear", "::matmul")
_OPERATION = "cpu_op"
_FUSED_ATTENTION = "scaled_dot_product"
_HOST_KINDS = (_OPERATION, "user_annotation", "cuda_runtime", "cuda_driver")
_DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
_MOST_OPERATIONS = 12


class _Details(msgspec.Struct):
    correlation: int | None = None


class _Event(msgspec.Struct):
    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    args: _Details | None = None


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]


@dataclass(frozen=True, slots=True)
class Operation:
    """One name in the trace: how often it came, and its own time."""

    name: str
    calls: int
    ms: float


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Shares are parts of the steps' wall time; on a device, of the same time."""

    steps: int
    step_ms_mean: float
    step_ms_p50: float
    step_ms_p95: float
    tokens_per_step: float
    rows_per_step: float
    shares: dict[str, float]
    device_shares: dict[str, float]  # empty without a device of its own
    operations: list[Operation]
    kernels: list[Operation]


@dataclass
class _Tally:
    """Own time of the host, in microseconds."""

    by_category: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_name: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    launched_in: dict[int, str] = field(default_factory=dict)  # correlation -> category


@dataclass(slots=True)
class _Open:
    """An event that others may lie in."""

    event: _Event
    category: str
    own: float


def summarise(packed: bytes) -> TraceSummary:
    """Read a trace, compressed by gzip.

    Raises:
        InvalidRequest: it is no trace of an engine's steps.
    """
    try:
        events = msgspec.json.decode(gzip.decompress(packed), type=_Trace).traceEvents
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise InvalidRequest(f"The trace cannot be read: {error}.") from None
    complete = [event for event in events if event.ph == "X"]
    steps = [event for event in complete if event.name == _STEP and event.cat in _HOST_KINDS]
    if not steps:
        raise InvalidRequest("The trace has no step of an engine.")
    tally = _Tally()
    host = sorted(
        (e for e in complete if e.cat in _HOST_KINDS and e.tid == steps[0].tid),
        key=lambda e: (e.ts, -e.dur),
    )
    begins = [event.ts for event in host]
    for step in steps:
        first, last = bisect_left(begins, step.ts), bisect_left(begins, step.ts + step.dur)
        _walk(host[first:last], tally)
    return _summary(steps, complete, tally)


def _walk(events: list[_Event], tally: _Tally) -> None:
    """Charge each event's own time; events of one thread, in order, lie in each other or apart."""
    stack: list[_Open] = []
    for event in events:
        while stack and event.ts >= stack[-1].event.ts + stack[-1].event.dur:
            _charge(stack.pop(), tally)
        category = _category(event, stack[-1].category if stack else HOST)
        if stack:
            stack[-1].own -= event.dur
        stack.append(_Open(event, category, event.dur))
        if event.args is not None and event.args.correlation is not None:
            tally.launched_in[event.args.correlation] = category
    while stack:
        _charge(stack.pop(), tally)


def _category(event: _Event, around: str) -> str:
    """What an event belongs to: to the stretch around it first, then to what it is itself."""
    if event.name in _STRETCHES:
        return _STRETCHES[event.name]
    if event.cat == _OPERATION and around in (HOST, OTHER):
        if _FUSED_ATTENTION in event.name:  # of a lane whose attention is not ours to mark
            return ATTENTION
        return MATRIX if event.name.endswith(_PRODUCTS) else OTHER
    return around


def _charge(done: _Open, tally: _Tally) -> None:
    own = max(0.0, done.own)
    # Between the operations of a stretch runs Python, whatever the stretch is of; but the fused
    # layers are one call, which has no operations.
    is_python = done.event.cat == "user_annotation" and done.category != FUSED
    tally.by_category[HOST if is_python else done.category] += own
    if not is_python:
        tally.by_name[done.event.name].append(own)


def _summary(steps: list[_Event], complete: list[_Event], tally: _Tally) -> TraceSummary:
    times = sorted(step.dur for step in steps)
    total = sum(times)
    runs = [e.name.split() for e in complete if e.name.startswith(_RUN) and e.cat in _HOST_KINDS]
    kernels: dict[str, list[float]] = defaultdict(list)
    on_device: dict[str, float] = defaultdict(float)
    for event in complete:
        if event.cat in _DEVICE_KINDS:
            correlation = event.args.correlation if event.args else None
            on_device[tally.launched_in.get(correlation or -1, OTHER)] += event.dur
            kernels[event.name].append(event.dur)
    return TraceSummary(
        steps=len(steps),
        step_ms_mean=total / len(steps) / 1000,
        step_ms_p50=_quantile(times, 0.5) / 1000,
        step_ms_p95=_quantile(times, 0.95) / 1000,
        tokens_per_step=sum(int(words[1]) for words in runs) / len(steps),
        rows_per_step=sum(int(words[3]) for words in runs) / len(steps),
        shares={
            name: tally.by_category[name] / total
            for name in (FUSED, ATTENTION, MATRIX, SAMPLING, OTHER, HOST)
        },
        device_shares={name: us / total for name, us in sorted(on_device.items())},
        operations=_largest(tally.by_name.items()),
        kernels=_largest(kernels.items()),
    )


def _largest(found: Iterable[tuple[str, list[float]]]) -> list[Operation]:
    told = [Operation(name, len(times), sum(times) / 1000) for name, times in found]
    return sorted(told, key=lambda one: -one.ms)[:_MOST_OPERATIONS]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that is not below so many of them (nearest rank)."""
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]
