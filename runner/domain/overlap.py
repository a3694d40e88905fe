"""What a run does while an earlier one of its schedule has not ended."""

from enum import StrEnum

from runner.domain.catch_up import Trigger


class Overlap(StrEnum):
    """The rule of a schedule: leave the run out, let it wait, or start it all the same."""

    SKIP = "skip"
    QUEUE = "queue"
    ALLOW = "allow"


def rule_for(overlap: Overlap, trigger: Trigger) -> Overlap:
    """The rule for one run.

    Who asks for a run by hand wants it now. Runs that make up for an absence were not planned at
    once, so they wait for each other where the rule would leave out all but the first.
    """
    if trigger is Trigger.MANUAL:
        return Overlap.ALLOW
    if trigger is Trigger.CATCH_UP and overlap is Overlap.SKIP:
        return Overlap.QUEUE
    return overlap
