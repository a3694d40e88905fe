"""Memory for kernels: large, on cache lines, taken from the system only as it is written."""

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes of a cache line, and of a vector register."""


def zeroed(size: int) -> npt.NDArray[np.uint8]:
    """[size] zero bytes that start on a cache line; their pages exist once they are touched."""
    pages = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    start = -pages.ctypes.data % ALIGNMENT
    return pages[start : start + size]


class Arena:
    """One piece of memory that is handed out in parts, so that huge pages can hold it."""

    def __init__(self, size: int) -> None:
        self._memory = zeroed(size)
        self._used = 0

    def take(self, size: int) -> int:
        """Address of the next `size` bytes; they live as long as the arena."""
        address = int(self._memory.ctypes.data) + self._used
        self._used += padded(size)
        assert self._used <= len(self._memory), "the arena was made too small"
        return address


def padded(size: int) -> int:
    """`size` up to the next cache line."""
    return -(-size // ALIGNMENT) * ALIGNMENT
