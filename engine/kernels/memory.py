"""Memory for kernels: large, on cache lines, taken from the system only as it is written."""

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes of a cache line, and of a vector register."""


def zeroed(size: int) -> npt.NDArray[np.uint8]:
    """[size] zero bytes that start on a page; their pages exist once they are touched.

    Huge pages, where Linux gives them on request: blocks are read all over a large pool, and with
    small pages nearly every one costs a walk through the page table.
    """
    return np.frombuffer(_pages(size), dtype=np.uint8)[:size]


def _pages(size: int) -> mmap.mmap:
    # Python's default is shared memory, which has no huge pages.
    pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


class Arena:
    """One piece of memory that is handed out in parts, so that huge pages can hold it."""

    def __init__(self, size: int) -> None:
        self._pages = _pages(size)
        self._memory = np.frombuffer(self._pages, dtype=np.uint8)
        self._used = 0

    def take(self, size: int) -> int:
        """Address of the next `size` bytes; they live as long as the arena."""
        address = self.base + self._used
        self._used += padded(size)
        assert self._used <= len(self._memory), "the arena was made too small"
        return address

    @property
    def base(self) -> int:
        """Address of the first byte."""
        return int(self._memory.ctypes.data)

    @property
    def used(self) -> npt.NDArray[np.uint8]:
        """The bytes that have been handed out, from the first one on."""
        return self._memory[: self._used]

    def give_back(self, address: int, size: int) -> None:
        """Let go of the whole pages of a part that nobody reads any more."""
        start = address - self.base
        first, end = -(-start // mmap.PAGESIZE), (start + size) // mmap.PAGESIZE
        if end > first and hasattr(mmap, "MADV_DONTNEED"):
            length = (end - first) * mmap.PAGESIZE
            self._pages.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, length)


def padded(size: int) -> int:
    """`size` up to the next cache line."""
    return -(-size // ALIGNMENT) * ALIGNMENT
