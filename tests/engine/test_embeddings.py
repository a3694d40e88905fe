"""Embeddings equal transformers' hidden states, pooled, whatever the scheduling does."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_exactness import reference_outputs, tiny_prompts
from tiny_models import (
    BLOCK_SIZE,
    VOCAB_SIZE,
    EngineFactory,
    FamilyFactory,
    block_bytes,
    save_tokenizer,
)
from transformers import AutoModel, AutoModelForCausalLM

from engine.errors import InvalidParams, PromptTooLong, UnsupportedModel
from engine.llm_engine import LLMEngine
from engine.models.folder import read_pooling
from engine.outputs import FinishReason, RequestOutput
from engine.pooling import Pooling, PoolingParams, Vector
from engine.sampling_params import SamplingParams

LAST, MEAN = Pooling.LAST, Pooling.MEAN
# Sums in another order differ in the last bits of float32, and no more.
TOLERANCE = 2e-6


def plain_vectors(
    folder: Path, prompts: list[list[int]], dimensions: int | None = None
) -> dict[Pooling, list[Vector]]:
    """One prompt at a time through transformers' model without a head."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        states = [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in prompts]
    pooled = {LAST: [rows[-1] for rows in states], MEAN: [rows.mean(0) for rows in states]}
    return {
        pooling: [torch.nn.functional.normalize(row[:dimensions], dim=0).numpy() for row in vectors]
        for pooling, vectors in pooled.items()
    }


def run_to_the_end(engine: LLMEngine) -> dict[str, RequestOutput]:
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        outputs.update((output.request_id, output) for output in engine.step())
        engine.check_integrity()
    assert engine.stats().kv_blocks_used == 0
    return outputs


def embed(
    engine: LLMEngine, prompts: list[list[int]], params: PoolingParams
) -> list[RequestOutput]:
    for index, prompt in enumerate(prompts):
        engine.add_pooling_request(str(index), prompt, params)
    outputs = run_to_the_end(engine)
    return [outputs[str(index)] for index in range(len(prompts))]


def assert_equal(output: RequestOutput, expected: Vector) -> None:
    assert output.finish_reason is FinishReason.STOP
    assert output.embedding is not None
    assert output.embedding.dtype == np.float32
    np.testing.assert_allclose(output.embedding, expected, rtol=0, atol=TOLERANCE)


@pytest.fixture(scope="module")
def expected(
    llama_folder: Path,
) -> tuple[list[list[int]], dict[Pooling, list[Vector]], list[tuple[int, ...]]]:
    prompts = tiny_prompts(24)
    answers = reference_outputs(llama_folder, prompts, max_tokens=6)
    return prompts, plain_vectors(llama_folder, prompts), answers


@pytest.mark.parametrize("preempt_every", [0, 2])
@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 256])
def test_vectors_equal_transformers_beside_requests_that_generate(
    make_engine: EngineFactory,
    expected: tuple[list[list[int]], dict[Pooling, list[Vector]], list[tuple[int, ...]]],
    chunk: int,
    prefix_caching: bool,
    preempt_every: int,
) -> None:
    prompts, vectors, answers = expected
    engine = make_engine(
        long_prefill_tokens=chunk,
        max_num_batched_tokens=chunk + 40,
        enable_prefix_caching=prefix_caching,
        preempt_every=preempt_every,
    )
    for index, prompt in enumerate(prompts):
        engine.add_pooling_request(f"last-{index}", prompt, PoolingParams(LAST))
        engine.add_request(f"text-{index}", prompt, SamplingParams(max_tokens=6))
        engine.add_pooling_request(f"mean-{index}", prompt, PoolingParams(MEAN))
    outputs = run_to_the_end(engine)
    for index, answer in enumerate(answers):
        assert outputs[f"text-{index}"].token_ids == answer
        assert outputs[f"text-{index}"].embedding is None
        for pooling in Pooling:
            assert_equal(outputs[f"{pooling}-{index}"], vectors[pooling][index])
    stats = engine.stats()
    assert (stats.preemptions > 0) == bool(preempt_every)
    assert stats.output_tokens == sum(len(answer) for answer in answers)
    assert stats.prompt_tokens == 3 * sum(len(prompt) for prompt in prompts)


@pytest.mark.parametrize("pooling", list(Pooling))
def test_only_the_last_token_may_stand_on_a_cached_prefix(
    make_engine: EngineFactory, llama_folder: Path, pooling: Pooling
) -> None:
    prompt = tiny_prompts(1)[0] + list(range(2 * BLOCK_SIZE))
    (vector,) = plain_vectors(llama_folder, [prompt])[pooling]
    engine = make_engine()
    engine.add_request("first", prompt, SamplingParams(max_tokens=1))
    run_to_the_end(engine)
    for _ in range(2):
        (output,) = embed(engine, [prompt], PoolingParams(pooling))
        assert_equal(output, vector)
        assert (output.metrics.cached_tokens > 0) == (pooling is LAST)
    # What a mean computes is there for others, as the blocks of any request are.
    other = [number % 400 for number in range(100, 100 + 3 * BLOCK_SIZE)]
    embed(engine, [other], PoolingParams(MEAN))
    (output,) = embed(engine, [other], PoolingParams(LAST))
    assert output.metrics.cached_tokens == 2 * BLOCK_SIZE


def test_preemption_on_a_small_pool_changes_no_vector(
    make_engine: EngineFactory, llama_folder: Path
) -> None:
    prompts = [list(range(start, start + 5 * BLOCK_SIZE)) for start in range(0, 60, 10)]
    vectors = plain_vectors(llama_folder, prompts)
    engine = make_engine(
        kv_memory_bytes=12 * block_bytes(), preempt_every=3, long_prefill_tokens=BLOCK_SIZE
    )
    for index, prompt in enumerate(prompts):
        engine.add_pooling_request(f"mean-{index}", prompt, PoolingParams(MEAN))
        engine.add_request(f"text-{index}", prompt, SamplingParams(max_tokens=30, ignore_eos=True))
    outputs = run_to_the_end(engine)
    assert engine.stats().preemptions > 0
    for index, vector in enumerate(vectors[MEAN]):
        assert_equal(outputs[f"mean-{index}"], vector)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("mistral", {"sliding_window": 11}),
        ("qwen3", {"head_dim": 32}),
        ("gemma2", {"head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 16}),
        ("gpt2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}),
        ("gpt_neox", {}),
        ("opt", {"word_embed_proj_dim": 32, "ffn_dim": 64, "pad_token_id": 1}),
    ],
)
def test_the_final_norm_is_part_of_the_states_in_every_family(
    make_engine: EngineFactory,
    make_family: FamilyFactory,
    family: str,
    settings: dict[str, object],
) -> None:
    folder = make_family(family, settings)
    prompts = tiny_prompts(4)
    vectors = plain_vectors(folder, prompts)
    engine = make_engine(folder, long_prefill_tokens=5)
    for pooling in Pooling:
        outputs = embed(engine, prompts, PoolingParams(pooling))
        for output, vector in zip(outputs, vectors[pooling], strict=True):
            assert_equal(output, vector)


def test_dimensions_are_cut_before_the_vector_is_brought_to_length_one(
    make_engine: EngineFactory, llama_folder: Path
) -> None:
    prompts = tiny_prompts(2)
    vectors = plain_vectors(llama_folder, prompts, dimensions=7)[LAST]
    outputs = embed(make_engine(), prompts, PoolingParams(dimensions=7))
    for output, vector in zip(outputs, vectors, strict=True):
        assert_equal(output, vector)
        assert output.embedding is not None
        assert output.embedding.shape == (7,)
        assert np.linalg.norm(output.embedding) == pytest.approx(1, abs=1e-6)


def test_an_embedding_has_no_output_and_its_times_add_up(make_engine: EngineFactory) -> None:
    engine = make_engine()
    outputs = embed(engine, tiny_prompts(3), PoolingParams(MEAN))
    for output in outputs:
        metrics = output.metrics
        assert (output.token_ids, output.text, metrics.output_tokens) == ((), "", 0)
        assert metrics.first_token_us == metrics.decode_us == 0
        assert metrics.queue_us + metrics.prefill_us == metrics.total_us
    assert sum(o.metrics.device_us for o in outputs) == engine.stats().busy_us


def test_a_prompt_may_fill_the_context_but_not_pass_it(make_engine: EngineFactory) -> None:
    engine = make_engine(max_model_len=32)
    (output,) = embed(engine, [[5] * 32], PoolingParams())
    assert output.finish_reason is FinishReason.STOP
    with pytest.raises(PromptTooLong, match="33"):
        engine.add_pooling_request("long", [5] * 33, PoolingParams())


@pytest.mark.parametrize(
    ("prompt", "dimensions", "param"),
    [
        ([], None, "prompt"),
        ([VOCAB_SIZE], None, "prompt"),
        ([1], 0, "dimensions"),
        ([1], 65, "dimensions"),
    ],
)
def test_what_can_not_be_embedded_is_refused_by_name(
    make_engine: EngineFactory, prompt: list[int], dimensions: int | None, param: str
) -> None:
    with pytest.raises(InvalidParams) as caught:
        make_engine().add_pooling_request("a", prompt, PoolingParams(dimensions=dimensions))
    assert caught.value.param == param


def test_states_that_are_not_finite_end_their_request_alone(
    make_engine: EngineFactory, llama_folder: Path, tmp_path: Path
) -> None:
    bad, good = [7] * 20, [9] * 20
    (vector,) = plain_vectors(llama_folder, [good])[MEAN]
    network = AutoModelForCausalLM.from_pretrained(llama_folder)
    with torch.no_grad():
        network.get_input_embeddings().weight[7] = float("nan")
    network.save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    engine = make_engine(tmp_path)
    for pooling in Pooling:
        outputs = embed(engine, [bad, good], PoolingParams(pooling))
        assert outputs[0].finish_reason is FinishReason.ERROR
        assert outputs[0].error is not None
        assert outputs[0].error.code == "invalid_logits"
        assert outputs[0].embedding is None
        assert outputs[1].finish_reason is FinishReason.STOP
    assert_equal(outputs[1], vector)


def test_an_aborted_embedding_has_no_vector(make_engine: EngineFactory) -> None:
    engine = make_engine(long_prefill_tokens=2)
    engine.add_pooling_request("a", [1, 2, 3, 4, 5], PoolingParams(MEAN))
    engine.step()
    (output,) = engine.abort(["a"])
    assert output.finish_reason is FinishReason.ABORT
    assert output.embedding is None


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        (None, LAST),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, MEAN),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, LAST),
        ({"pooling_mode_cls_token": True}, None),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, None),
        ({"pooling_mode": "mean"}, MEAN),
        ({"pooling_mode": "max"}, None),
        ({}, None),
    ],
)
def test_the_folder_says_how_its_model_pools(
    tmp_path: Path, settings: dict[str, object] | None, pooling: Pooling | None
) -> None:
    if settings is not None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    assert read_pooling(tmp_path) is pooling


def test_a_pooling_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(UnsupportedModel, match="1_Pooling"):
        read_pooling(tmp_path)
