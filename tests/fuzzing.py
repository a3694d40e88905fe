"""How long the searches with random input last: short and the same each time, or as asked."""

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))  # set by ``make fuzz``


def search_alike() -> None:
    """Have every other search try the same examples each time, however slow the machine is."""
    settings.register_profile(
        "alike",
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("alike")


def runs(examples: int, steps: int = 30) -> settings:
    """The settings of a search: ``examples`` of them in the suite."""
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
