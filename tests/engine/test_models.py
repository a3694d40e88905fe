"""Loading: what is refused and why, and a probe that notices a wrong attention."""

import json
from pathlib import Path

import pytest
import torch
from tiny_models import save_model

from engine import attention
from engine.attention.backend import AttentionOptions
from engine.attention.reference import ReferenceAttention
from engine.config import EngineConfig
from engine.errors import InvalidParams, UnsupportedModel
from engine.models import hf, load_model, probe
from engine.models.folder import choose_max_model_len


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


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gpt_neo", {"num_hidden_layers": 2, "attention_types": [[["global"], 2]]}),
        ("bloom", {}),
        ("mamba", {}),
    ],
)
def test_family_without_replaceable_attention_is_refused(
    tmp_path: Path, family: str, settings: dict[str, object]
) -> None:
    save_model(tmp_path, family, **settings)
    with pytest.raises(UnsupportedModel, match="attention be replaced"):
        load_model(EngineConfig(model=tmp_path))


@pytest.mark.parametrize(
    ("family", "settings", "sentence"),
    [
        ("gpt_oss", {"head_dim": 16, "num_local_experts": 4}, "attention sinks"),
        ("llama4_text", {"head_dim": 16, "intermediate_size_mlp": 128}, "chunked_attention"),
        ("bert", {}, "other logits"),
    ],
)
def test_attention_beyond_the_paged_engine_is_refused(
    tmp_path: Path, family: str, settings: dict[str, object], sentence: str
) -> None:
    save_model(tmp_path, family, **settings)
    with pytest.raises(UnsupportedModel, match=sentence):
        load_model(EngineConfig(model=tmp_path))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gpt2", {}),
        ("gpt_neox", {}),
        ("phi3", {}),
        ("olmo2", {}),
        ("mixtral", {"num_local_experts": 4}),
        ("gemma3_text", {"head_dim": 16, "sliding_window": 9}),
        (
            "deepseek_v3",
            {
                "num_key_value_heads": 4,
                "q_lora_rank": 16,
                "kv_lora_rank": 16,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 12,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "n_group": 1,
                "topk_group": 1,
            },
        ),
    ],
)
def test_families_of_every_kind_pass_the_probe(
    tmp_path: Path, family: str, settings: dict[str, object]
) -> None:
    save_model(tmp_path, family, **settings)
    assert load_model(EngineConfig(model=tmp_path, dtype="float32")).shapes


def test_longer_than_the_model_was_trained_for_is_refused(llama_folder: Path) -> None:
    with pytest.raises(InvalidParams, match="256 positions"):
        load_model(EngineConfig(model=llama_folder, max_model_len=257))
    assert load_model(EngineConfig(model=llama_folder, max_model_len=100)).max_model_len == 100


def test_unknown_length_must_be_set() -> None:
    assert choose_max_model_len(100, None) == 100
    with pytest.raises(UnsupportedModel, match="set max_model_len"):
        choose_max_model_len(None, None)


def test_dtype_follows_the_request_or_the_hardware(llama_folder: Path) -> None:
    model = load_model(EngineConfig(model=llama_folder, dtype="bfloat16"))
    assert model.dtype is torch.bfloat16
    automatic = hf.choose_dtype("auto", torch.device("cpu"))
    is_native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    assert automatic is (torch.bfloat16 if is_native else torch.float32)


class ForgetfulAttention(ReferenceAttention):
    """Loses the scale, as a model with a twist of its own would."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        wrong = AttentionOptions(options.scale * 1.5, options.window, options.softcap)
        return super().attend(layer, query, key, value, wrong)


def test_probe_refuses_other_logits(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "open_attention", ForgetfulAttention)
    with pytest.raises(UnsupportedModel, match="other logits"):
        load_model(EngineConfig(model=llama_folder))


def test_plain_attention_is_put_back_after_the_probe(llama_folder: Path) -> None:
    model = hf.load_from_folder(EngineConfig(model=llama_folder, dtype="float32"))
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
