"""How many threads this process may really run at once."""

import os
from pathlib import Path

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_threads() -> int:
    """Cores that the scheduler lets this process use, within its container's quota; at least 1.

    A quota below the number of cores stops all threads for the rest of each period once it is
    spent, so a thread more than the quota makes every barrier wait for the next period.
    """
    threads = len(os.sched_getaffinity(0))
    try:
        quota, period = CGROUP_QUOTA.read_text().split()
    except (OSError, ValueError):
        return threads
    if quota.isdecimal() and int(period) > 0:
        threads = min(threads, int(quota) // int(period))
    return max(1, threads)
