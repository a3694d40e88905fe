"""What becomes of a prompt that is longer than it may be: the words for it."""

from enum import StrEnum


class Truncation(StrEnum):
    """The policy of a line, or by its defaults of a job."""

    ERROR = "error"
    KEEP_FIRST = "keep_first"
    KEEP_LAST = "keep_last"
    KEEP_SYSTEM_AND_LAST = "keep_system_and_last"


POLICIES = tuple(policy.value for policy in Truncation)
