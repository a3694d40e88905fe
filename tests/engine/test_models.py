"""Loading: what is refused and why, and what the configuration tells."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_models import save_model
from transformers import AutoModelForCausalLM

from engine import attention
from engine.config import EngineConfig
from engine.errors import InvalidParams, UnsupportedModel
from engine.models import LoadedModel, hf, load_model, probe
from engine.models.folder import UNTOLD_LENGTH, choose_max_model_len
from engine.models.padded import PaddedModel
from engine.models.positions import has_positions_by_length, trained_length


def rewrite_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "remote code"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"vision_config": {"hidden_size": 8}}, "multimodal"),
        ({"model_type": "bert_of_the_future"}, "knows no causal language model"),
    ],
)
def test_unsupported_config_is_refused(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    rewrite_config(save_model(tmp_path), **changes)
    with pytest.raises(UnsupportedModel, match=sentence) as caught:
        load_model(EngineConfig(model=tmp_path))
    assert caught.value.code == "unsupported_model"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.pkl"])
def test_pickled_weights_are_refused(tmp_path: Path, name: str) -> None:
    save_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    with pytest.raises(UnsupportedModel, match=f"pickles .{name}"):
        load_model(EngineConfig(model=tmp_path))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"config\.json can't be read"):
        load_model(EngineConfig(model=tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModel, match="not valid JSON"):
        load_model(EngineConfig(model=tmp_path))
    save_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match="holds no"):
        load_model(EngineConfig(model=tmp_path))


def test_incomplete_weights_are_refused_not_made_up(tmp_path: Path) -> None:
    rewrite_config(save_model(tmp_path), num_hidden_layers=4)
    with pytest.raises(UnsupportedModel, match="lacks 9 weights"):
        load_model(EngineConfig(model=tmp_path))


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    path = save_model(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UnsupportedModel, match="can't load or run"):
        load_model(EngineConfig(model=tmp_path))


def test_model_that_looks_at_later_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="looks at later tokens"):
        load_model(EngineConfig(model=save_model(tmp_path, "bert")))


def test_longer_than_the_model_was_trained_for_is_refused(llama_folder: Path) -> None:
    with pytest.raises(InvalidParams, match="256 positions"):
        load_model(EngineConfig(model=llama_folder, max_model_len=257))
    assert load_model(EngineConfig(model=llama_folder, max_model_len=100)).max_model_len == 100


def test_length_that_the_model_does_not_tell_is_chosen() -> None:
    assert choose_max_model_len(100, None) == 100
    assert choose_max_model_len(None, None) == UNTOLD_LENGTH


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ({"max_position_embeddings": 7, "max_seq_len": 9}, 7),
        ({"max_position_embeddings": None, "max_seq_len": 9}, 9),
        ({"seq_length": 2048}, 2048),
        ({"seq_length": -1}, None),
    ],
)
def test_trained_length_has_several_names(settings: dict[str, object], length: int | None) -> None:
    assert trained_length(SimpleNamespace(**settings)) == length


@pytest.mark.parametrize(
    ("rope", "max_model_len", "grows"),
    [
        ({"rope_type": "longrope", "original_max_position_embeddings": 10}, 10, False),
        ({"rope_type": "longrope", "original_max_position_embeddings": 10}, 11, True),
        ({"rope_type": "dynamic"}, 100, False),
        ({"rope_type": "yarn", "original_max_position_embeddings": 10}, 100, False),
        ({"full_attention": {"rope_type": "longrope"}, "sliding_attention": None}, 101, True),
        (None, 100, False),
    ],
)
def test_positions_that_depend_on_the_length_are_noticed(
    rope: object, max_model_len: int, grows: bool
) -> None:
    model_config = SimpleNamespace(rope_parameters=rope, max_position_embeddings=100)
    assert has_positions_by_length(model_config, max_model_len) is grows


def test_dtype_follows_the_request_or_the_hardware(llama_folder: Path) -> None:
    model = load_model(EngineConfig(model=llama_folder, dtype="bfloat16"))
    assert model.dtype is torch.bfloat16
    automatic = hf.choose_dtype("auto", torch.device("cpu"))
    is_native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    assert automatic is (torch.bfloat16 if is_native else torch.float32)


@pytest.mark.parametrize(("family", "kind"), [("mixtral", LoadedModel), ("mamba", PaddedModel)])
def test_rounding_of_bfloat16_does_not_choose_the_lane(
    tmp_path: Path, family: str, kind: type
) -> None:
    # With these weights the logits of chunks, steps and batches round far apart.
    settings = {"num_hidden_layers": 2, "num_local_experts": 4, "state_size": 8}
    folder = save_model(tmp_path, family, initializer_range=0.05, **settings)
    model = load_model(EngineConfig(model=folder, dtype="bfloat16", block_size=8))
    assert isinstance(model, kind)
    assert isinstance(model, LoadedModel) or model.batches
    kept = model._network.state_dict()  # without the layers that were packed
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
    assert "model.embed_tokens.weight" in kept or "backbone.embeddings.weight" in kept
    assert all(tensor.dtype is plain[name].dtype for name, tensor in kept.items())
    assert all(torch.equal(tensor, plain[name]) for name, tensor in kept.items())


def test_memory_that_runs_out_at_the_probe_is_no_reason_for_a_lane(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: object) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(probe, "open_attention", run_out)
    with pytest.raises(UnsupportedModel, match="no more"):
        load_model(EngineConfig(model=llama_folder))


def test_plain_attention_is_put_back_after_the_probe(llama_folder: Path) -> None:
    network, max_model_len = hf.load_from_folder(EngineConfig(llama_folder, dtype="float32"))
    model = hf.page_attention(network, max_model_len)
    probe.probe_model(model, 8, probe.plain_answers(model, 8))
    before = model.plain_logits([1, 2, 3])
    backend = attention.open_attention(model.shapes, 8, model.device, model.dtype)
    backend.allocate(1)
    backend.begin(attention.backend.BatchLayout([3], [3], [[0]]))
    ids = torch.tensor([1, 2, 3])
    with torch.inference_mode():
        paged = model.logits(ids, torch.arange(3), torch.arange(3), backend)
    torch.testing.assert_close(paged, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dtype", "float16"),
        ("block_size", 0),
        ("max_num_seqs", 0),
        ("watermark", 1.0),
        ("memory_utilization", 0.0),
        ("preempt_every", -1),
    ],
)
def test_bad_configuration_names_its_field(field: str, value: object) -> None:
    with pytest.raises(InvalidParams) as caught:
        EngineConfig(model=Path("m"), **{field: value})  # type: ignore[arg-type]
    assert caught.value.param == field
