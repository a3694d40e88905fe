"""Sizes of steps that were found by timing, kept for the next start of the same model."""

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from engine.cache_folder import NoCacheFolder, cache_folder, written_aside
from engine.config import EngineConfig
from engine.kept_state import state_of
from engine.kernels import KernelsUnavailable, load_kernels

KIND = "steps"
"""Of cached things."""
LEAST_SECONDS = 0.02
"""Quicker steps are timed each time."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """How many rows and tokens a step should have.

    Attributes:
        seconds: what a step of so many tokens took.
    """

    rows: int
    tokens: int
    seconds: float


class KeptSizes:
    """The sizes of one model under one set of limits; whatever can't be read was never kept."""

    def __init__(self, config: EngineConfig, most_rows: int, most_tokens: int) -> None:
        self._config = config
        self._limits = (most_rows, most_tokens, config.step_seconds, torch.get_num_threads())

    def read(self) -> StepSizes | None:
        with contextlib.suppress(*_NOT_KEPT):
            told = json.loads(self._path().read_bytes())
            if told.pop("state") == self._state():
                return StepSizes(**told)
        return None

    def write(self, sizes: StepSizes) -> None:
        if sizes.seconds < LEAST_SECONDS:
            return
        with contextlib.suppress(*_NOT_KEPT):
            told = {**asdict(sizes), "state": self._state()}
            with written_aside(self._path()) as made:
                made.write_text(json.dumps(told))

    def _path(self) -> Path:
        config = self._config
        asked = (config.model.resolve(), config.dtype, config.quantisation, config.block_size)
        digest = hashlib.sha256(repr((asked, config.max_model_len, self._limits)).encode())
        return cache_folder(KIND) / f"{digest.hexdigest()[:24]}.json"

    def _state(self) -> str:
        return state_of(self._config.model, load_kernels().name)


_NOT_KEPT = (NoCacheFolder, KernelsUnavailable, OSError, ValueError, TypeError, KeyError)
