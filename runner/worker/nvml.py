"""The energy that an NVIDIA GPU counts itself, read through its driver's own library (NVML).

The library comes with the driver, so there is nothing to install. GPUs since Volta count the
millijoules of the whole board; older ones, and slices of one (MIG), have no such counter.
"""

import ctypes
from collections.abc import Callable
from typing import Protocol

LIBRARY = "libnvidia-ml.so.1"


class Driver(Protocol):
    """What is called of the library; each call gives 0, or the number of an error."""

    @property
    def nvmlInit_v2(self) -> Callable[[], int]: ...  # noqa: N802 - the library's own names
    @property
    def nvmlDeviceGetHandleByUUID(self) -> Callable[..., int]: ...  # noqa: N802
    @property
    def nvmlDeviceGetTotalEnergyConsumption(self) -> Callable[..., int]: ...  # noqa: N802


class GpuMeter:
    """The energy counter of one GPU."""

    def __init__(self, driver: Driver, uuid: str) -> None:
        """Open the GPU of a UUID such as ``GPU-8f6e…``.

        Raises:
            OSError: the driver doesn't know it, or it counts no energy.
        """
        self._driver = driver
        self._gpu = ctypes.c_void_p()
        _must(driver.nvmlInit_v2())
        _must(driver.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._gpu)))
        self._first_mj = self._counter_mj()

    @classmethod
    def find(cls, uuid: str) -> "GpuMeter | None":
        """The meter of a GPU; None where the driver is not there, or has no counter for it."""
        try:
            return cls(ctypes.CDLL(LIBRARY), uuid)
        except (OSError, AttributeError):  # AttributeError: a driver older than the counters
            return None

    def read(self) -> int:
        """Microjoules used since the meter was opened."""
        return (self._counter_mj() - self._first_mj) * 1000

    def _counter_mj(self) -> int:
        found = ctypes.c_ulonglong()
        _must(self._driver.nvmlDeviceGetTotalEnergyConsumption(self._gpu, ctypes.byref(found)))
        return found.value


def _must(status: int) -> None:
    if status:
        raise OSError(f"NVML gave error {status}.")
