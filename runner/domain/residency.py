"""Which model a worker should have loaded: one is resident, and changing it costs its loading."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.domain.ids import ModelId

_LEAST_SECONDS = 60.0
_LOADS = 5.0  # a residency lasts so many loadings at least: a sixth of the time is lost at most
_MOST_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Demand:
    """The lines that wait for one model.

    Attributes:
        rank: the place of its first job, 0 being the next, in the order of turns over all models.
        workers: how many others have it loaded, load it, or are about to.
        seconds: of device time that its waiting lines will take.
        failed: whether a worker of this host has lately died while it loaded it.
    """

    model_id: ModelId
    rank: int
    workers: int
    seconds: float
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Residency:
    """A worker with a model; ``idle_seconds`` since it held a line, None while it does."""

    model_id: ModelId
    seconds: float
    load_seconds: float
    idle_seconds: float | None


def first_model(demands: Sequence[Demand]) -> ModelId | None:
    """What a worker should load that has nothing: the most urgent that nobody serves, then the most
    urgent. One that lately failed to load comes last. None if nothing waits."""
    order = sorted(demands, key=lambda each: (each.failed, each.workers > 0, each.rank))
    return order[0].model_id if order else None


def next_model(residency: Residency, demands: Sequence[Demand]) -> ModelId | None:
    """What a worker should load in place of its model; None if it should stay.

    While lines wait for its own model it stays for a minute, and for five times as long as loading
    took; then a model that nobody serves may take its place, if its turn comes before. Out of work
    it waits for as long as loading took, at most 5 s, and then goes where nobody serves, or where
    one more worker saves more time than loading costs.
    """
    own = next((each for each in demands if each.model_id == residency.model_id), None)
    others = [each for each in demands if each is not own and not each.failed]
    unserved = [each for each in others if not each.workers]
    if own is not None:
        stays = max(_LEAST_SECONDS, _LOADS * residency.load_seconds)
        wanted = [each for each in unserved if each.rank < own.rank]
        return _most_urgent(wanted) if residency.seconds >= stays else None
    patience = min(_MOST_PATIENCE_SECONDS, residency.load_seconds)
    if residency.idle_seconds is None or residency.idle_seconds < patience:
        return None
    worth = [each for each in others if each.workers and _saved(each) > residency.load_seconds]
    return _most_urgent(unserved) or _most_urgent(worth)


def _saved(demand: Demand) -> float:
    """Seconds by which the work ends sooner with one worker more."""
    return demand.seconds / demand.workers - demand.seconds / (demand.workers + 1)


def _most_urgent(demands: Sequence[Demand]) -> ModelId | None:
    return min(demands, key=lambda each: each.rank).model_id if demands else None
