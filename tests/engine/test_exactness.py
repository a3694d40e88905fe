"""Greedy tokens in float32 equal transformers' `generate`, whatever the scheduling does."""

from pathlib import Path

import pytest
import torch
from tiny_models import BLOCK_SIZE, VOCAB_SIZE, EngineFactory, block_bytes
from transformers import AutoModelForCausalLM

from engine.llm_engine import LLMEngine
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams

CHUNKS = [1, 3, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1]
SMOLLM2_BLOCK = 16
SMOLLM2_TOKENS = 6


def reference_outputs(
    folder: Path, prompts: list[list[int]], max_tokens: int
) -> list[tuple[int, ...]]:
    """One prompt at a time through transformers, the end token included."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    outputs = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        outputs.append(tuple(out[0, len(prompt) :].tolist()))
    return outputs


def run_all(engine: LLMEngine, prompts: list[list[int]], max_tokens: int) -> list[RequestOutput]:
    params = SamplingParams(max_tokens=max_tokens)
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, params)
    finished: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        finished.update((output.request_id, output) for output in engine.step())
        engine.check_integrity()
    assert engine.stats().kv_blocks_used == 0
    return [finished[str(index)] for index in range(len(prompts))]


def tiny_prompts(count: int) -> list[list[int]]:
    """Lengths from 1 to past three blocks; every third shares a two-block prefix."""
    generator = torch.Generator().manual_seed(7)
    shared = torch.randint(0, VOCAB_SIZE - 1, (2 * BLOCK_SIZE,), generator=generator).tolist()
    prompts = []
    for index in range(count):
        length = 1 + (index * 5) % (3 * BLOCK_SIZE + 2)
        tail = torch.randint(0, VOCAB_SIZE - 1, (length,), generator=generator).tolist()
        prompts.append(shared + tail if index % 3 == 0 else tail)
    return prompts


@pytest.fixture(scope="module")
def tiny_expected(llama_folder: Path) -> tuple[list[list[int]], list[tuple[int, ...]]]:
    prompts = tiny_prompts(64)
    return prompts, reference_outputs(llama_folder, prompts, max_tokens=12)


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("preempt_every", [0, 1, 3])
@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_tiny_llama_equals_generate(
    make_engine: EngineFactory,
    tiny_expected: tuple[list[list[int]], list[tuple[int, ...]]],
    chunk: int,
    prefix_caching: bool,
    preempt_every: int,
    batch: int,
) -> None:
    prompts, expected = (part[:batch] for part in tiny_expected)
    engine = make_engine(
        long_prefill_tokens=chunk,
        max_num_batched_tokens=chunk if batch == 1 else chunk + 64,
        enable_prefix_caching=prefix_caching,
        preempt_every=preempt_every,
        max_num_seqs=64,
    )
    outputs = run_all(engine, prompts, max_tokens=12)
    assert [output.token_ids for output in outputs] == expected
    if preempt_every:
        assert engine.stats().preemptions > 0


@pytest.mark.parametrize("chunk", CHUNKS)
def test_token_budget_smaller_than_the_batch_changes_nothing(
    make_engine: EngineFactory,
    tiny_expected: tuple[list[list[int]], list[tuple[int, ...]]],
    chunk: int,
) -> None:
    prompts, expected = (part[:12] for part in tiny_expected)
    engine = make_engine(max_num_batched_tokens=chunk)
    outputs = run_all(engine, prompts, max_tokens=12)
    assert [output.token_ids for output in outputs] == expected


def test_pool_too_small_for_the_batch_preempts_and_changes_nothing(
    make_engine: EngineFactory,
    tiny_expected: tuple[list[list[int]], list[tuple[int, ...]]],
) -> None:
    prompts, expected = tiny_expected
    engine = make_engine(kv_memory_bytes=24 * block_bytes(), watermark=0.0)
    assert engine.stats().kv_blocks_total == 24
    outputs = run_all(engine, prompts, max_tokens=12)
    assert [output.token_ids for output in outputs] == expected
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.recomputed_tokens == sum(o.metrics.recomputed_tokens for o in outputs)


def test_keys_that_are_attended_once_for_all_change_nothing(
    make_engine: EngineFactory, llama_folder: Path
) -> None:
    """More rows and keys in common than the kernels need to make them one product."""
    generator = torch.Generator().manual_seed(5)
    shared = torch.randint(0, VOCAB_SIZE - 1, (20 * BLOCK_SIZE,), generator=generator).tolist()
    tails = torch.randint(0, VOCAB_SIZE - 1, (8, 5), generator=generator).tolist()
    prompts = [shared + tail[: 1 + index % 5] for index, tail in enumerate(tails)]
    expected = reference_outputs(llama_folder, prompts, max_tokens=12)
    engine = make_engine(max_num_batched_tokens=256, long_prefill_tokens=256)
    outputs = run_all(engine, prompts, max_tokens=12)
    assert [output.token_ids for output in outputs] == expected
    assert [output.metrics.cached_tokens > 0 for output in outputs] == [False] + [True] * 7


@pytest.fixture(scope="module")
def smollm2_expected(smollm2_folder: Path) -> tuple[list[list[int]], list[tuple[int, ...]]]:
    generator = torch.Generator().manual_seed(3)
    system = torch.randint(5, 40_000, (SMOLLM2_BLOCK + 4,), generator=generator).tolist()
    tails = torch.randint(5, 40_000, (8, 14), generator=generator).tolist()
    prompts = [system + tail[: 2 + 2 * index] for index, tail in enumerate(tails[:6])] + tails[6:]
    return prompts, reference_outputs(smollm2_folder, prompts, SMOLLM2_TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chunk", "prefix_caching", "preempt_every", "batch"),
    [
        (1, True, 0, 1),
        (3, False, 3, 8),
        (SMOLLM2_BLOCK - 1, True, 2, 8),
        (SMOLLM2_BLOCK, False, 0, 8),
        (SMOLLM2_BLOCK + 1, True, 3, 64),
        (256, True, 0, 64),
    ],
)
def test_smollm2_equals_generate(
    make_engine: EngineFactory,
    smollm2_folder: Path,
    smollm2_expected: tuple[list[list[int]], list[tuple[int, ...]]],
    chunk: int,
    prefix_caching: bool,
    preempt_every: int,
    batch: int,
) -> None:
    prompts, expected = smollm2_expected
    engine = make_engine(
        smollm2_folder,
        kv_memory_bytes=256 << 20,
        block_size=SMOLLM2_BLOCK,
        long_prefill_tokens=chunk,
        enable_prefix_caching=prefix_caching,
        preempt_every=preempt_every,
        max_num_seqs=64,
    )
    rows = [index % len(prompts) for index in range(batch)]
    outputs = run_all(engine, [prompts[row] for row in rows], SMOLLM2_TOKENS)
    assert [output.token_ids for output in outputs] == [expected[row] for row in rows]
