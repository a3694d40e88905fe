"""What lines cost in energy, where the machine measures it; nothing is ever guessed.

A worker reads the counter of what computes: its GPU's own (``nvml``), else those of the processor
packages, as Linux tells them (RAPL). A line gets the mean power of the time it was in the worker,
times its share of device time; the shares of the lines of a busy worker are its wall time, so their
energy is what was measured meanwhile. It is that of the whole GPU or package: where other work runs
beside it, theirs is in it.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runner.worker.nvml import GpuMeter
from runner.worker.time_sheet import now_us

RAPL = Path("/sys/class/powercap")
_SAMPLES = 8192  # at two a second, over an hour


@dataclass(frozen=True, slots=True)
class _Sample:
    at_us: int
    used_uj: int


class Meter(Protocol):
    """A counter of energy."""

    def read(self) -> int:
        """Microjoules used since the meter was found.

        Raises:
            OSError: it can't be read now.
        """


class RaplMeter:
    """The energy counters of all processor packages, as one that never wraps."""

    def __init__(self, packages: Sequence[Path]) -> None:
        self._packages = packages
        self._ranges = [_number(package / "max_energy_range_uj") for package in packages]
        self._last = self._counters()
        self._used_uj = 0

    @classmethod
    def find(cls, folder: Path = RAPL) -> "RaplMeter | None":
        """The meter of this machine; None where there is none, or it may not be read."""
        packages = sorted(folder.glob("intel-rapl:[0-9]*"))
        packages = [package for package in packages if package.name.count(":") == 1]
        try:
            return cls(packages) if packages else None
        except OSError:
            return None

    def read(self) -> int:
        """Microjoules used since the meter was found."""
        counters = self._counters()
        for last, now, size in zip(self._last, counters, self._ranges, strict=True):
            self._used_uj += now - last if now >= last else now - last + size
        self._last = counters
        return self._used_uj

    def _counters(self) -> list[int]:
        return [_number(package / "energy_uj") for package in self._packages]


def find_meter(gpu_uuid: str | None) -> Meter | None:
    """The meter of what computes, a GPU or the processors; None where nothing measures it."""
    return RaplMeter.find() if gpu_uuid is None else GpuMeter.find(gpu_uuid)


class PowerLog:
    """Readings of a meter over time. One thread samples, another asks."""

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES)

    def watch(self, meter: Meter | None) -> None:
        """Read this meter from now on; before the first sample."""
        self._meter = meter

    def sample(self) -> None:
        """Read the meter; call it about twice a second."""
        if self._meter is None:
            return
        try:
            self._samples.append(_Sample(now_us(), self._meter.read()))
        except OSError:  # what was measured before says nothing of what follows
            self._samples.clear()

    def share_of(self, device_us: int, total_us: int) -> int | None:
        """Microjoules of a line that has just ended, by its share of device time in microseconds.

        None where nothing was measured while it ran.
        """
        samples = list(self._samples)
        if len(samples) < 2:  # noqa: PLR2004 - a difference needs two
            return None
        began = now_us() - total_us
        first = max(
            (sample for sample in samples[:-1] if sample.at_us <= began),
            key=lambda sample: sample.at_us,
            default=samples[0],
        )
        last = samples[-1]
        return (last.used_uj - first.used_uj) * device_us // (last.at_us - first.at_us)


def _number(file: Path) -> int:
    return int(file.read_text())
