"""How much may still be written to the disk that the embedded database lives on."""

import shutil
from pathlib import Path

_GIB = 1024**3
_RESERVE_BYTES = _GIB
_RESERVE_SHARE = 20  # a twentieth, on small disks
_WAL_BYTES = 4 * _GIB
_WAL_SHARE = 8  # an eighth, on small disks
_LEAST_WAL_BYTES = 64 * 1024**2


def free_room(data_dir: Path) -> int:
    """Bytes that may be written before the reserve is touched; negative once it is.

    The reserve is what running jobs need to commit their results and the database to put its log:
    without space for its log it stops altogether.
    """
    usage = shutil.disk_usage(data_dir)
    return usage.free - min(_RESERVE_BYTES, usage.total // _RESERVE_SHARE)


def wal_bytes(data_dir: Path) -> int:
    """How large the log written ahead may grow between checkpoints: much, but not a small disk."""
    total = shutil.disk_usage(data_dir).total
    return max(_LEAST_WAL_BYTES, min(_WAL_BYTES, total // _WAL_SHARE))
