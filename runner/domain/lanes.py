"""The way a model was run, as far as a person who reads a report wants to know."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lane:
    """How a backend computes its model; ``reason`` says why not faster, and is empty if it is."""

    name: str  # paged | padded | stub
    reason: str = ""
