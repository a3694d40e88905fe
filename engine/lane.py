"""How a model runs: in our paged attention, or in transformers' own."""

from dataclasses import dataclass

from engine.config import EngineConfig
from engine.model_runner import Runner

PAGED = "paged"
PADDED = "padded"


@dataclass(frozen=True, slots=True)
class Lane:
    """How a model runs.

    Attributes:
        name: PAGED or PADDED.
        reason: why it isn't PAGED; empty if it is.
        details: for people, and names the lane.
        runner: computes the steps.
        num_blocks: of the pool.
        config: the settings that hold in this lane.
        whole_prompts: a prompt can't be cut into chunks.
    """

    name: str
    reason: str
    details: str
    runner: Runner
    num_blocks: int
    config: EngineConfig
    whole_prompts: bool
