"""The fused layers against the plain model, on every instruction set that this machine has."""

import ctypes
import logging
from pathlib import Path

import pytest
import torch
from kernel_levels import kernels_of, levels_to_test
from tiny_models import EngineFactory, FamilyFactory, save_model
from transformers import AutoModelForCausalLM

from engine import attention
from engine.attention.backend import BatchLayout
from engine.config import EngineConfig
from engine.kernels import Kernels
from engine.kernels.build import LEVELS, usable_levels
from engine.kernels.library import BFLOAT16, FLOAT32, FORMAT_BF16, FORMAT_PLAIN, Matrix
from engine.llm_engine import LLMEngine
from engine.models import FusedModel, LoadedModel, Wanted, load_model, loading, packing
from engine.models.hf import load_from_folder, page_attention
from engine.models.likeliest import Likeliest
from engine.models.llama import NotFusable, take_apart
from engine.models.probe import TOLERANCE
from engine.sampling_params import SamplingParams

BLOCK = 8

pytestmark = pytest.mark.skipif(not usable_levels(), reason="no kernels for this processor")


@pytest.fixture(
    scope="module",
    params=levels_to_test(),
    ids=lambda level: level.name,
)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_of(request.param)


def load_paged(config: EngineConfig) -> LoadedModel:
    """The model with transformers' layers and our attention."""
    return page_attention(*load_from_folder(config))


def run(model: LoadedModel | FusedModel, prompts: list[list[int]], rows: list[int]) -> torch.Tensor:
    """[rows, vocab] of whole prompts that are computed in one step."""
    backend = attention.open_attention(model.shapes, BLOCK, model.device, model.dtype)
    blocks = [-(-len(prompt) // BLOCK) for prompt in prompts]
    backend.allocate(sum(blocks))
    tables = [
        list(range(sum(blocks[:index]), sum(blocks[: index + 1]))) for index in range(len(prompts))
    ]
    lengths = [len(prompt) for prompt in prompts]
    backend.begin(BatchLayout(lengths, lengths, tables))
    with torch.inference_mode():
        logits = model.logits(
            torch.tensor([token for prompt in prompts for token in prompt]),
            torch.tensor([position for n in lengths for position in range(n)]),
            torch.tensor(rows),
            backend,
        )
        return logits.clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(160, 64), (528, 96), (35, 32), (40, 4096)])
def test_products_equal_torch_s_for_every_number_of_rows(
    kernels: Kernels, dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    code = BFLOAT16 if dtype is torch.bfloat16 else FLOAT32
    weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
    bias = torch.randn(outputs, generator=generator)
    panels = torch.empty(-(-outputs // 16) * 16 * inputs, dtype=dtype)
    kernels.functions.tm_pack(weight.data_ptr(), outputs, inputs, code, panels.data_ptr(), 0, 1)
    matrix = Matrix(panels.data_ptr(), bias.data_ptr(), outputs, inputs)
    for count in (1, 2, 3, 4, 5, 6, 7, 31, 33, 65, 130):
        rows = torch.randn(-(-count // 32) * 32, inputs, generator=generator).to(dtype)
        rows[count:] = float("nan")  # rows behind the last one must not reach the others
        out = torch.full((count + 1, outputs), 7.0)
        kernels.functions.tm_product(
            rows.data_ptr(), count, code, ctypes.byref(matrix), out.data_ptr(), 2
        )
        expected = rows[:count].double() @ weight.double().T + bias
        torch.testing.assert_close(
            out[:count].double(), expected, rtol=1e-5, atol=2e-6 * inputs + 1e-4
        )
        assert bool((out[count] == 7.0).all()), "it wrote behind its last row"


@pytest.mark.parametrize(("outputs", "inputs"), [(160, 64), (528, 96), (35, 32), (40, 4096)])
def test_panels_of_bfloat16_give_the_same_sums_as_the_floats_that_they_are(
    kernels: Kernels, outputs: int, inputs: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    short = torch.randn(outputs, inputs, generator=generator).bfloat16()
    matrices, memory = [], []
    for weight, code, kind in (
        (short, BFLOAT16, FORMAT_BF16),
        (short.float(), FLOAT32, FORMAT_PLAIN),
    ):
        panels = torch.empty(-(-outputs // 16) * 16 * inputs, dtype=weight.dtype)
        kernels.functions.tm_pack(weight.data_ptr(), outputs, inputs, code, panels.data_ptr(), 0, 1)
        matrices.append(
            Matrix(panels=panels.data_ptr(), outputs=outputs, inputs=inputs, format=kind)
        )
        memory += [weight, panels]
    for count in (1, 2, 3, 4, 5, 6, 7, 31, 33, 65, 130):
        rows = torch.randn(count, inputs, generator=generator)
        found = [torch.full((count + 1, outputs), 7.0) for _ in matrices]
        for matrix, out in zip(matrices, found, strict=True):
            kernels.functions.tm_product(
                rows.data_ptr(), count, FLOAT32, ctypes.byref(matrix), out.data_ptr(), 2
            )
        assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_instruction_set_computes_the_model(
    kernels: Kernels, dtype: str, llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "load_kernels", lambda: kernels)
    monkeypatch.setattr(loading, "load_kernels", lambda: kernels)
    assert isinstance(load_model(EngineConfig(model=llama_folder, dtype=dtype)), FusedModel)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen2", {"tie_word_embeddings": True, "vocab_size": 517}),
        (
            "llama",
            {
                "attention_bias": True,
                "mlp_bias": True,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 10_000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 16,
                },
            },
        ),
        ("qwen3", {"head_dim": 32}),
        ("mistral", {"sliding_window": 11}),
    ],
)
def test_families_of_llama_s_shape_are_fused_and_equal_the_plain_model(
    tmp_path: Path, family: str, settings: dict[str, object]
) -> None:
    save_model(tmp_path, family, **settings)
    perturb(tmp_path)
    config = EngineConfig(model=tmp_path, dtype="float32")
    model = load_model(config)
    assert isinstance(model, FusedModel)
    plain = load_paged(config)
    prompts = [[3 + i for i in range(37)], [9], [200 - i for i in range(20)]]
    logits = run(model, prompts, [36, 37, 57, 10])
    with torch.inference_mode():
        whole = [plain.plain_logits(prompt) for prompt in prompts]
    expected = torch.stack([whole[0][36], whole[1][0], whole[2][19], whole[0][10]])
    limit = TOLERANCE[torch.float32] * float(expected.abs().max())
    torch.testing.assert_close(logits, expected, rtol=0, atol=limit)


def test_weights_that_were_bfloat16_take_half_the_room_in_float32_and_lose_nothing(
    llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(model=llama_folder, dtype="float32")
    floats = load_model(config)
    assert isinstance(floats, FusedModel)
    assert floats.packed.stack.head.format == FORMAT_PLAIN
    round_to_bfloat16(llama_folder)
    short = load_model(config)
    assert isinstance(short, FusedModel)
    assert short.packed.stack.head.format == FORMAT_BF16
    assert short.packed.stack.layers[0].down.format == FORMAT_BF16
    embedding = floats.vocab_size * floats.hidden_size * 4
    room = len(floats.packed.arena.used) - embedding
    assert len(short.packed.arena.used) - embedding < 0.6 * room
    monkeypatch.setattr(packing._Packing, "_panel_dtype", lambda *_: torch.float32)
    exact = load_model(config)
    assert isinstance(exact, FusedModel)
    assert exact.packed.stack.head.format == FORMAT_PLAIN
    prompts = [[3 + i for i in range(37)], [9], [200 - i for i in range(20)]]
    rows = [36, 37, 57, 10]
    assert torch.equal(run(short, prompts, rows), run(exact, prompts, rows))
    assert torch.equal(run(short, [[9]], [0]), run(exact, [[9]], [0]))


def round_to_bfloat16(folder: Path) -> None:
    """Round the weights of a folder to bfloat16, and keep them as float32."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    network.bfloat16().float().save_pretrained(folder)


def perturb(folder: Path) -> None:
    """Give norms and biases values of their own: a fresh model has ones and zeros."""
    network = AutoModelForCausalLM.from_pretrained(folder)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in network.named_parameters():
        if parameter.dim() == 1:
            base = 0.0 if name.endswith("bias") else 1.0
            parameter.data = base + 0.3 * torch.randn(parameter.shape, generator=generator)
    network.save_pretrained(folder)


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("gemma2", {"head_dim": 16}, "activation"),
        ("phi3", {}, "no module where Llama has one"),
        ("olmo2", {}, "no module where Llama has one"),
        ("llama", {"hidden_act": "gelu"}, "activation"),
        ("llama", {"intermediate_size": 72}, "multiple of 32"),
    ],
)
def test_other_shapes_keep_transformers_layers(
    tmp_path: Path, family: str, settings: dict[str, object], reason: str
) -> None:
    save_model(tmp_path, family, **settings)
    config = EngineConfig(model=tmp_path, dtype="float32")
    with pytest.raises(NotFusable, match=reason):
        take_apart(load_paged(config))
    assert isinstance(load_model(config), LoadedModel)


def test_code_that_does_more_than_llama_s_is_found_out_by_the_probe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make_engine: EngineFactory
) -> None:
    save_model(tmp_path, "granite", residual_multiplier=0.7)
    with caplog.at_level(logging.WARNING):
        engine = make_engine(tmp_path)
    assert "runs without fused layers" in caplog.text
    assert "fused layers" not in engine.description
    assert generate(engine, [1, 2, 3])


def test_a_weight_without_a_place_in_the_shape_is_not_left_out(llama_folder: Path) -> None:
    model = load_paged(EngineConfig(model=llama_folder, dtype="float32"))
    model.network.get_submodule("model.layers.1.mlp").register_parameter(
        "extra", torch.nn.Parameter(torch.ones(1))
    )
    with pytest.raises(NotFusable, match=r"layers\.1\.mlp\.extra"):
        take_apart(model)


def test_a_row_has_the_same_logits_alone_and_in_any_batch(llama_folder: Path) -> None:
    model = load_model(EngineConfig(model=llama_folder, dtype="float32"))
    prompts = [[5, 6, 7, 8, 9], [1, 2], list(range(100, 140))]
    together = run(model, prompts, [4, 6, 46])
    alone = torch.cat([run(model, [prompt], [len(prompt) - 1]) for prompt in prompts])
    assert torch.equal(together, alone)


def test_nan_of_one_sequence_does_not_reach_another(llama_folder: Path) -> None:
    model = load_model(EngineConfig(model=llama_folder, dtype="float32"))
    assert isinstance(model, FusedModel)
    expected = run(model, [[1, 2, 3]], [2])
    embedding_of(model)[77] = float("nan")
    logits = run(model, [[4, 77, 5], [1, 2, 3]], [2, 5])
    assert bool(logits[0].isnan().all())
    assert torch.equal(logits[1], expected[0])


def test_hidden_states_are_those_that_the_head_reads(llama_folder: Path) -> None:
    config = EngineConfig(model=llama_folder, dtype="float32")
    model = load_model(config)
    assert isinstance(model, FusedModel)
    backend = attention.open_attention(model.shapes, BLOCK, model.device, model.dtype)
    backend.allocate(1)
    backend.begin(BatchLayout([4], [4], [[0]]))
    ids = torch.tensor([1, 2, 3, 4])
    with torch.inference_mode():
        rows = torch.tensor([3, 1])
        hidden, logits = model.hidden_and_logits(ids, torch.arange(4), rows, backend)
        head = load_paged(config).network.get_submodule("lm_head")
        torch.testing.assert_close(head(hidden[rows]), logits, rtol=1e-4, atol=1e-4)
        nothing = torch.empty(0, dtype=torch.long)
        again, no_logits = model.hidden_and_logits(ids, torch.arange(4), nothing, backend)
    assert torch.equal(again, hidden)
    assert no_logits.shape == (0, model.vocab_size)


def embedding_of(model: FusedModel) -> torch.Tensor:
    """[vocab, hidden], the memory that a model in float32 reads."""
    size = model.vocab_size * model.hidden_size * 4
    memory = (ctypes.c_char * size).from_address(model.packed.stack.embedding)
    return torch.frombuffer(memory, dtype=torch.float32).view(model.vocab_size, -1)


def likeliest(
    model: FusedModel, prompt: list[int], rows: list[int], wanted: Wanted
) -> tuple[Likeliest, torch.Tensor]:
    """Of a prompt that is computed in one step."""
    backend = attention.open_attention(model.shapes, BLOCK, model.device, model.dtype)
    backend.allocate(-(-len(prompt) // BLOCK))
    backend.begin(
        BatchLayout([len(prompt)], [len(prompt)], [list(range(-(-len(prompt) // BLOCK)))])
    )
    with torch.inference_mode():
        found, logits = model.likeliest_and_logits(
            torch.tensor(prompt), torch.arange(len(prompt)), torch.tensor(rows), backend, wanted
        )
        return found, logits.clone()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_likeliest_token_is_that_of_the_logits(
    kernels: Kernels, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "load_kernels", lambda: kernels)
    monkeypatch.setattr(loading, "load_kernels", lambda: kernels)
    save_model(tmp_path, "llama", vocab_size=517)
    model = load_model(EngineConfig(model=tmp_path, dtype=dtype))
    assert isinstance(model, FusedModel)
    prompt = [(11 * i) % 500 for i in range(40)]
    for rows in (list(range(40)), [39, 0, 7], [17]):
        logits = run(model, [prompt], rows)
        for num_ids in (517, 509, 100, 1):
            found, some = likeliest(model, prompt, rows, Wanted(1, num_ids))
            assert found.token_ids == logits[:, :num_ids].argmax(-1).tolist()
            assert all(found.finite)
            assert torch.equal(some, logits[:1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_lowest_of_equally_likely_tokens_is_taken(llama_folder: Path, dtype: str) -> None:
    paged = load_paged(EngineConfig(model=llama_folder, dtype=dtype))
    head = paged.network.get_submodule("lm_head")
    weight = head.get_parameter("weight").data
    weight[:] = weight[torch.randperm(len(weight), generator=torch.Generator().manual_seed(3)) % 20]
    model = loading.fuse(paged)
    prompt = list(range(50, 90))
    logits = run(model, [prompt], list(range(40)))
    found, _ = likeliest(model, prompt, list(range(40)), Wanted(0, model.vocab_size))
    lowest = [int((row == row.max()).nonzero()[0]) for row in logits]
    assert found.token_ids == lowest
    assert any(int((row == row.max()).sum()) > 1 for row in logits)


def test_a_row_without_logits_still_tells_that_they_are_not_finite(llama_folder: Path) -> None:
    model = load_model(EngineConfig(model=llama_folder, dtype="float32"))
    assert isinstance(model, FusedModel)
    embedding_of(model)[77] = float("nan")
    found, _ = likeliest(model, [1, 2, 77, 4], [2, 3], Wanted(0, model.vocab_size))
    assert found.finite == [False, False]


def test_originals_are_let_go(llama_folder: Path) -> None:
    model = load_paged(EngineConfig(model=llama_folder, dtype="float32"))
    loading.fuse(model)
    left = sum(p.numel() for name, p in model.network.named_parameters() if "proj" in name)
    assert left == 0


def test_bfloat16_answers_are_near_the_plain_ones(make_family: FamilyFactory) -> None:
    folder = make_family("llama", {"initializer_range": 0.05})
    config = EngineConfig(model=folder, dtype="bfloat16")
    model = load_model(config)
    assert isinstance(model, FusedModel)
    prompt = [(11 * i) % 500 for i in range(60)]
    with torch.inference_mode():
        plain = load_paged(EngineConfig(model=folder, dtype="float32")).plain_logits(prompt)
    limit = 0.02 * float(plain.abs().max())
    # AMX or not: by the rows of all tokens, and by those of the last layer.
    for length, rows in ((60, list(range(60))), (60, [59, 3]), (4, [0, 3])):
        logits = run(model, [prompt[:length]], rows)
        assert float((logits - plain[rows]).abs().max()) < limit


def generate(engine: LLMEngine, prompt: list[int]) -> tuple[int, ...]:
    engine.add_request("one", prompt, SamplingParams(max_tokens=3, ignore_eos=True))
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
    return outputs[0].token_ids


def test_levels_are_ordered_for_the_choice_of_the_best() -> None:
    assert usable_levels() == [level for level in LEVELS if level in usable_levels()]
