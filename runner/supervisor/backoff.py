"""How long to wait before a process that died is started again."""

from dataclasses import dataclass

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
HEALTHY_SECONDS = 60.0


@dataclass
class Backoff:
    """Doubles with every death; a process that ran long enough starts over."""

    deaths: int = 0

    def after_death(self, ran_seconds: float) -> float:
        """The seconds to wait now."""
        if ran_seconds >= HEALTHY_SECONDS:
            self.deaths = 0
        self.deaths += 1
        # The bound on the power keeps the number small in an endless crash loop.
        return min(LONGEST_SECONDS, FIRST_SECONDS * (1 << min(self.deaths - 1, 10)))
