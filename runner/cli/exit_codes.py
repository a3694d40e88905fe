"""What the end of a verb tells a program."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a verb ended: done, the job had failures, wrong use, the services can't be reached, or
    interrupted."""

    DONE = 0
    FAILURES = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130
