"""Models for the engine's tests: tiny random ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_models import BLOCK_SIZE, EngineFactory, FamilyFactory, save_model

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine

# Two threads that share their cores with other work wait for each other most of the time.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def make_family(tmp_path: Path) -> FamilyFactory:
    """Save a tiny random model of a family, with some of its settings changed."""
    return lambda family, settings: save_model(tmp_path, family, **settings)


@pytest.fixture
def make_engine(llama_folder: Path) -> Iterator[EngineFactory]:
    """Build engines that are checked for lost blocks when the test ends."""
    engines: list[LLMEngine] = []

    def make(model: Path = llama_folder, **overrides: object) -> LLMEngine:
        settings: dict[str, object] = {
            "dtype": "float32",
            "block_size": BLOCK_SIZE,
            "kv_memory_bytes": 64 << 20,
            # How much is guessed depends on the clock, and with that the number of steps.
            "num_speculative_tokens": 0,
        }
        engine = LLMEngine(EngineConfig(model=model, **(settings | overrides)))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.check_integrity()
        if not engine.has_unfinished():
            assert engine.stats().kv_blocks_used == 0
