"""Fused models kept on disk: taken up where they still hold, and only there."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import FamilyFactory

from engine.attention import open_attention
from engine.attention.backend import BatchLayout
from engine.config import EngineConfig
from engine.kernels.build import usable_levels
from engine.models import FusedModel, kept, load_model
from engine.quantisation import INT4, Quantisation

BLOCK = 8

pytestmark = pytest.mark.skipif(not usable_levels(), reason="no kernels for this processor")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, where models of any size are kept."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(kept, "cache_folder", lambda kind: folder)
    monkeypatch.setattr(kept, "SMALLEST_BYTES", 0)
    return folder


@pytest.fixture
def config(make_family: FamilyFactory) -> EngineConfig:
    folder = make_family("qwen3", {"num_attention_heads": 4, "num_key_value_heads": 2})
    return EngineConfig(model=folder, dtype="float32", block_size=BLOCK)


def logits_of(model: object) -> torch.Tensor:
    """[tokens, vocab] of one prompt."""
    assert isinstance(model, FusedModel)
    ids = torch.tensor([(11 * i) % 300 for i in range(40)])
    attention = open_attention(model.shapes, BLOCK, model.device, model.dtype)
    attention.allocate(5)
    attention.begin(BatchLayout([40], [40], [[4, 2, 0, 1, 3]]))
    with torch.inference_mode():
        return model.logits(ids, torch.arange(40), torch.arange(40), attention).clone()


def kept_file(cache: Path) -> Path:
    (path,) = cache.iterdir()
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"tie_word_embeddings": True, "vocab_size": 517}),
        ("qwen3", {}),
        ("mistral", {"sliding_window": 12}),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}),
    ],
)
def test_a_kept_model_gives_the_same_logits_to_the_last_bit(
    make_family: FamilyFactory, family: str, settings: dict[str, object], dtype: str
) -> None:
    config = EngineConfig(make_family(family, settings), dtype=dtype, block_size=BLOCK)
    first = load_model(config)
    again = kept.load_kept(config)
    assert again is not None
    assert torch.equal(logits_of(again), logits_of(first))
    assert (again.name, again.max_model_len) == (first.name, first.max_model_len)
    assert again.options == first.options


def test_a_start_from_what_is_kept_imports_no_transformers(
    config: EngineConfig, cache: Path
) -> None:
    load_model(config)
    code = (
        "import sys; from pathlib import Path\n"
        "from engine.models import kept, load_model\n"
        "from engine.config import EngineConfig\n"
        "kept.cache_folder = lambda kind: Path(sys.argv[2])\n"
        "config = EngineConfig(Path(sys.argv[1]), dtype='float32', block_size=8)\n"
        "print(load_model(config).name, 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(config.model), str(cache)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["Qwen3ForCausalLM", "(fused", "layers)", "False"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "notes.txt"])
def test_a_folder_that_was_touched_is_loaded_anew(config: EngineConfig, name: str) -> None:
    load_model(config)
    path = config.model / name
    path.write_bytes(path.read_bytes() if path.exists() else b"new")
    assert kept.load_kept(config) is None
    load_model(config)
    assert kept.load_kept(config) is not None


def test_other_settings_have_a_file_of_their_own(config: EngineConfig, cache: Path) -> None:
    load_model(config)
    shorter = EngineConfig(config.model, dtype="float32", block_size=BLOCK, max_model_len=64)
    assert kept.load_kept(shorter) is None
    assert load_model(shorter).max_model_len == 64
    assert len(list(cache.iterdir())) == 2


def test_other_code_or_libraries_make_it_void(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_model(config)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "another")
    assert kept.load_kept(config) is None


def test_weights_that_changed_on_the_disk_are_found_out_and_made_again(
    config: EngineConfig, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = logits_of(load_model(config))
    path = kept_file(cache)
    middle = path.stat().st_size // 2
    with path.open("r+b") as raw:
        raw.seek(middle)
        raw.write(os.urandom(middle // 2))
    with caplog.at_level(logging.WARNING):
        assert kept.load_kept(config) is None
    assert "made again" in caplog.text
    assert torch.equal(logits_of(load_model(config)), expected)
    assert kept.load_kept(config) is not None


def test_a_file_cut_short_is_made_again(
    config: EngineConfig, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_model(config)
    path = kept_file(cache)
    os.truncate(path, path.stat().st_size // 2)
    with caplog.at_level(logging.WARNING):
        load_model(config)
    assert "is not used" in caplog.text
    assert kept.load_kept(config) is not None


def test_quantised_and_small_models_are_not_kept(
    config: EngineConfig, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_model(EngineConfig(config.model, block_size=BLOCK, quantisation=Quantisation(INT4)))
    monkeypatch.setattr(kept, "SMALLEST_BYTES", 1 << 30)
    load_model(config)
    assert list(cache.iterdir()) == []


def test_a_full_disk_keeps_nothing_and_stops_nobody(
    config: EngineConfig, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "SHARE_OF_DISK", 0.0)
    assert isinstance(load_model(config), FusedModel)
    assert list(cache.iterdir()) == []


def test_models_whose_folders_are_gone_make_room(
    config: EngineConfig, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = tmp_path_factory.mktemp("copy") / "model"
    shutil.copytree(config.model, copy)
    load_model(EngineConfig(copy, dtype="float32", block_size=BLOCK))
    gone = kept_file(cache)
    shutil.rmtree(copy)
    load_model(config)
    assert not gone.exists()
    assert kept.load_kept(config) is not None
