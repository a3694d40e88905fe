"""Models with weights of 8 and 4 bits: what they compute, and which models may have them."""

from pathlib import Path

import pytest
import torch
from test_fused import load_paged, perturb, round_to_bfloat16, run
from tiny_models import EngineFactory, save_model
from transformers import AutoModelForCausalLM

from engine.attention import open_attention
from engine.attention.backend import LayerShape
from engine.config import EngineConfig
from engine.errors import InvalidParams
from engine.kernels.build import usable_levels
from engine.kernels.memory import Arena
from engine.models import FusedModel, load_model, packing
from engine.models.calibration import measure_reaches
from engine.models.llama import take_apart
from engine.models.low_bits import GROUP, round_to_int4, round_to_int8
from engine.models.probe import TOLERANCE
from engine.quantisation import Quantisation
from engine.sampling_params import SamplingParams

pytestmark = pytest.mark.skipif(not usable_levels(), reason="no kernels for this processor")

PROMPTS = [[3 + i for i in range(37)], [9], [200 - i for i in range(20)]]
ROWS = [36, 37, 57, 10]
TEXT = [(13 * i) % 500 for i in range(60)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with biases and norms of its own."""
    save_model(tmp_path, attention_bias=True, mlp_bias=True, hidden_size=96, num_attention_heads=6)
    perturb(tmp_path)
    return tmp_path


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_kept_in_bfloat16_are_rounded_like_the_floats_that_they_are(
    folder: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_to_bfloat16(folder)
    config = EngineConfig(folder, dtype="float32", quantisation=Quantisation(weights))
    short = load_model(config, TEXT)
    monkeypatch.setattr(packing._Packing, "_panel_dtype", lambda *_: torch.float32)
    floats = load_model(config, TEXT)
    assert isinstance(short, FusedModel)
    assert isinstance(floats, FusedModel)
    assert torch.equal(run(short, PROMPTS, ROWS), run(floats, PROMPTS, ROWS))


@pytest.fixture
def outliers(folder: Path) -> Path:
    """The same, with two elements of the normed states that outgrow all others."""
    network = AutoModelForCausalLM.from_pretrained(folder)
    for name, parameter in network.named_parameters():
        if name.endswith("layernorm.weight"):
            parameter.data[[5, 71]] *= 30.0
        if name.endswith(("q_proj.weight", "k_proj.weight", "gate_proj.weight", "up_proj.weight")):
            parameter.data[:, [5, 71]] /= 30.0
    network.save_pretrained(folder)
    return folder


def linears(network: torch.nn.Module) -> list[torch.nn.Linear]:
    return [
        module
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    ]


def plain_logits(network: torch.nn.Module) -> torch.Tensor:
    """[rows, vocab] of PROMPTS by transformers alone."""
    with torch.inference_mode():
        whole = [network(torch.tensor([prompt])).logits[0] for prompt in PROMPTS]
    return torch.stack([whole[0][36], whole[1][0], whole[2][19], whole[0][10]])


def load_quantised(folder: Path, weights: str) -> FusedModel:
    config = EngineConfig(folder, dtype="float32", quantisation=Quantisation(weights))
    model = load_model(config, TEXT)
    assert isinstance(model, FusedModel)
    return model


def test_a_model_in_int4_is_the_plain_one_with_rounded_weights(folder: Path) -> None:
    network = AutoModelForCausalLM.from_pretrained(folder)
    for linear in linears(network):
        codes, steps, least = round_to_int4(linear.weight)
        grouped = codes.view(len(codes), -1, GROUP) * steps.float()[..., None]
        linear.weight.data = (grouped + least.float()[..., None]).flatten(1)
    expected = plain_logits(network)
    logits = run(load_quantised(folder, "int4"), PROMPTS, ROWS)
    limit = TOLERANCE[torch.float32] * float(expected.abs().max())
    torch.testing.assert_close(logits, expected, rtol=0, atol=limit)


def test_a_model_in_int8_is_the_plain_one_with_rounded_weights_and_rows(folder: Path) -> None:
    def rounded(_module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        scales = inputs[0].abs().amax(-1, keepdim=True) / 127
        return (inputs[0] / scales).round() * scales

    model = load_model(EngineConfig(folder, dtype="float32"))
    assert isinstance(model, FusedModel)
    model.quantise("int8", [])
    network = AutoModelForCausalLM.from_pretrained(folder)
    for linear in linears(network):
        codes, scales = round_to_int8(linear.weight)
        linear.weight.data = codes * scales[:, None]
        linear.register_forward_pre_hook(rounded)
    expected = plain_logits(network)
    logits = run(model, PROMPTS, ROWS)
    # An element that lies between two whole numbers may go either way.
    limit = 0.02 * float(expected.abs().max())
    torch.testing.assert_close(logits, expected, rtol=0, atol=limit)


def test_outliers_of_activations_cost_less_when_they_move_into_the_weights(outliers: Path) -> None:
    expected = plain_logits(AutoModelForCausalLM.from_pretrained(outliers))
    rough = load_model(EngineConfig(outliers, dtype="float32"))
    assert isinstance(rough, FusedModel)
    rough.quantise("int8", [])
    far = (run(rough, PROMPTS, ROWS) - expected).norm()
    near = (run(load_quantised(outliers, "int8"), PROMPTS, ROWS) - expected).norm()
    assert near < 0.5 * far


def test_a_model_that_rounding_makes_talk_nonsense_is_refused(outliers: Path) -> None:
    config = EngineConfig(outliers, dtype="float32", quantisation=Quantisation("int4"))
    with pytest.raises(InvalidParams, match="gives other logits"):
        load_model(config, TEXT)


def test_reaches_are_the_largest_elements_that_the_products_read(folder: Path) -> None:
    model = load_paged(EngineConfig(folder, dtype="float32"))
    parts = take_apart(model)
    reaches = measure_reaches(model, parts, TEXT)
    assert [len(reach.gated) for reach in reaches] == [128] * 3
    with torch.inference_mode():
        hidden = parts.embedding(torch.tensor(TEXT))
        seen = parts.layers[0].input_norm(hidden).abs().amax(0)
    torch.testing.assert_close(reaches[0].attention_input, seen)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_row_has_the_same_logits_alone_and_in_any_batch(folder: Path, weights: str) -> None:
    model = load_quantised(folder, weights)
    prompts = [[5, 6, 7, 8, 9], [1, 2], list(range(100, 140))]
    together = run(model, prompts, [4, 6, 46])
    alone = torch.cat([run(model, [prompt], [len(prompt) - 1]) for prompt in prompts])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_an_engine_runs_with_rounded_weights_and_says_so(
    make_engine: EngineFactory, weights: str, dtype: str
) -> None:
    engine = make_engine(dtype=dtype, quantisation=Quantisation(weights))
    assert f"weights in {weights}" in engine.description
    engine.add_request("one", [1, 2, 3], SamplingParams(max_tokens=5, ignore_eos=True))
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
    assert len(outputs[0].token_ids) == 5


@pytest.mark.parametrize(("dtype", "times"), [("float32", 2.9), ("bfloat16", 1.45)])
def test_a_kv_cache_in_int8_holds_more_tokens_in_the_same_memory(
    make_engine: EngineFactory, dtype: str, times: float
) -> None:
    """Heads of 16 elements carry a scale of 4 bytes each, so it is not 4 or 2 times as many."""
    rounded = Quantisation(kv_cache="int8")
    plain = make_engine(dtype=dtype, kv_memory_bytes=400_000)
    engine = make_engine(dtype=dtype, kv_memory_bytes=400_000, quantisation=rounded)
    assert "KV in int8" in engine.description
    assert engine.stats().kv_blocks_total >= times * plain.stats().kv_blocks_total
    engine.add_request("one", [1, 2, 3], SamplingParams(max_tokens=20, ignore_eos=True))
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
    assert len(outputs[0].token_ids) == 20


def test_lanes_without_attention_in_c_refuse_a_rounded_kv_cache(
    tmp_path: Path, make_engine: EngineFactory
) -> None:
    save_model(tmp_path, "bloom", n_layer=2, n_head=4, hidden_size=64)
    with pytest.raises(InvalidParams, match=r"transformers' own.*Set kv_cache to auto"):
        make_engine(tmp_path, quantisation=Quantisation(kv_cache="int8"))
    shapes = [LayerShape(2, 16, 16)]
    with pytest.raises(InvalidParams, match=r"float16.*Set kv_cache to auto"):
        open_attention(shapes, 8, torch.device("cpu"), torch.float16, "int8")


def test_models_without_fused_layers_are_refused_with_the_reason(tmp_path: Path) -> None:
    save_model(tmp_path, "gemma2", head_dim=16)
    config = EngineConfig(tmp_path, dtype="float32", quantisation=Quantisation("int8"))
    with pytest.raises(InvalidParams, match=r"can't be in int8.*activation.*Set weights to auto"):
        load_model(config, TEXT)


def test_the_padded_lane_refuses_rounded_weights(tmp_path: Path) -> None:
    save_model(tmp_path, "bloom", n_layer=2, n_head=4, hidden_size=64)
    config = EngineConfig(tmp_path, dtype="float32", quantisation=Quantisation("int4"))
    with pytest.raises(InvalidParams, match="Set weights to auto"):
        load_model(config, TEXT)


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(InvalidParams, match="kv_cache must be one of auto, int8"):
        Quantisation(kv_cache="int4")
    with pytest.raises(InvalidParams, match="weights must be one of auto, int8, int4"):
        Quantisation("int3")


def test_memory_that_is_given_back_is_gone_and_its_neighbours_are_not() -> None:
    arena = Arena(3 << 16)
    first, second, third = (arena.take(1 << 16) for _ in range(3))
    memory = arena._memory
    memory[:] = 1
    arena.give_back(second + 8, (1 << 16) - 8)
    start = second - first
    assert int(memory[start + 4096 : 2 * start].max()) == 0
    assert bool((memory[: start + 8] == 1).all())
    assert bool((memory[third - first :] == 1).all())
