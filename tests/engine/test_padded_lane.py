"""The padded lane: rows come and go without a trace, and nothing else about a request changes."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from safetensors.torch import load_file, save_file
from test_exactness import reference_outputs, run_all, tiny_prompts
from test_llm_engine import drain
from tiny_models import BLOCK_SIZE, EngineFactory, FamilyFactory, save_model
from transformers import AutoModelForCausalLM

from engine.attention.backend import AttentionOptions
from engine.attention.reference import ReferenceAttention
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.errors import InvalidLogits, InvalidParams
from engine.llm_engine import LLMEngine
from engine.models import probe
from engine.padded_runner import FREE_PADDING, PaddedRunner
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler

BAD_ID = 300


@pytest.fixture(scope="session")
def bloom_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A padded model whose embedding of one token id is NaN."""
    folder = save_model(
        tmp_path_factory.mktemp("bloom"), "bloom", num_hidden_layers=2, n_head=4, seq_length=256
    )
    path = folder / "model.safetensors"
    weights = load_file(path)
    # Tied, the NaN would be in the logits of every line.
    weights["lm_head.weight"] = weights["transformer.word_embeddings.weight"].clone()
    weights["transformer.word_embeddings.weight"][BAD_ID] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    config = folder / "config.json"
    config.write_text(
        config.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false')
    )
    return folder


def rows_of(engine: LLMEngine) -> int:
    assert isinstance(engine._runner, PaddedRunner)
    return engine._runner.num_rows


def sampled(engine: LLMEngine, indices: Iterable[int]) -> dict[str, tuple[object, ...]]:
    """Token ids, and the log-probabilities of the likeliest to a few digits."""
    for index in indices:
        params = SamplingParams(
            max_tokens=8,
            temperature=(0.0, 0.8, 1.2)[index % 3],
            top_k=(0, 20)[index % 2],
            presence_penalty=0.5,
            seed=index,
            ignore_eos=True,
            logprobs=2,
        )
        engine.add_request(str(index), [index + 1] * (1 + 2 * index), params)
    outputs = drain(engine)
    return {
        name: (output.token_ids, [round(told.logprob, 3) for told in output.logprobs or ()])
        for name, output in outputs.items()
    }


def test_sampled_lines_and_their_logprobs_are_the_same_alone_batched_and_preempted(
    make_engine: EngineFactory, bloom_folder: Path
) -> None:
    together = sampled(make_engine(bloom_folder), range(6))
    engine = make_engine(bloom_folder)
    alone: dict[str, tuple[object, ...]] = {}
    for index in range(6):
        alone |= sampled(engine, [index])
    assert together == alone
    preempting = make_engine(bloom_folder, preempt_every=2, max_num_batched_tokens=4)
    assert sampled(preempting, range(6)) == alone
    assert preempting.stats().preemptions > 0


def test_logprobs_are_those_of_the_plain_model(
    make_engine: EngineFactory, bloom_folder: Path
) -> None:
    engine = make_engine(bloom_folder)
    prompt = [65, 66, 67, 68]
    engine.add_request("r", prompt, SamplingParams(max_tokens=4, ignore_eos=True, logprobs=1))
    output = drain(engine)["r"]
    model = AutoModelForCausalLM.from_pretrained(bloom_folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + list(output.token_ids)])).logits[0]
    expected = logits[:, : engine.tokenizer.num_token_ids].log_softmax(-1)
    for index, (token_id, told) in enumerate(
        zip(output.token_ids, output.logprobs or (), strict=True), start=len(prompt) - 1
    ):
        assert told.logprob == pytest.approx(expected[index, token_id].item(), abs=1e-3)


def test_nan_in_one_row_of_a_batch_fails_that_row_alone(
    make_engine: EngineFactory, bloom_folder: Path
) -> None:
    engine = make_engine(bloom_folder)
    forced = SamplingParams(max_tokens=4, ignore_eos=True, logit_bias={BAD_ID: 100.0})
    engine.add_request("bad", [5] * 9, forced)
    engine.add_request("good", [6] * 4, SamplingParams(max_tokens=4, ignore_eos=True))
    together = drain(engine)
    assert isinstance(together["bad"].error, InvalidLogits)
    assert together["bad"].token_ids == (BAD_ID,)
    engine.add_request("alone", [6] * 4, SamplingParams(max_tokens=4, ignore_eos=True))
    assert together["good"].token_ids == drain(engine)["alone"].token_ids


def test_rows_are_dropped_when_requests_end_abort_or_are_preempted(
    make_engine: EngineFactory, bloom_folder: Path
) -> None:
    engine = make_engine(bloom_folder, preempt_every=2, max_num_seqs=4)
    for index in range(7):
        params = SamplingParams(max_tokens=3 + index, ignore_eos=True)
        engine.add_request(str(index), [index + 1] * (1 + 9 * index), params)
    for step in range(12):
        engine.step()
        assert rows_of(engine) <= engine.max_num_seqs
        if step == 5:
            engine.abort(["5", "6"])
    engine.abort([str(index) for index in range(7)])
    assert not engine.has_unfinished()
    assert rows_of(engine) == 0


def test_rows_of_far_lengths_are_not_padded_to_each_other(
    make_engine: EngineFactory, bloom_folder: Path
) -> None:
    engine = make_engine(bloom_folder)
    long = FREE_PADDING + 8
    for name, length in (("a", 2), ("b", 3), ("c", long)):
        engine.add_request(name, [7] * length, SamplingParams(max_tokens=16, ignore_eos=True))
    engine.step()
    engine.step()
    assert isinstance(engine._runner, PaddedRunner)
    together = [[r.request_id for r in group.requests] for group in engine._runner._groups]
    assert together == [["a", "b"], ["c"]]
    for _ in range(10):  # short rows catch up in proportion
        engine.step()
    assert [len(group.requests) for group in engine._runner._groups] == [3]


def test_memory_bounds_the_lines_of_a_padded_model_and_changes_nothing(
    make_engine: EngineFactory, bloom_folder: Path
) -> None:
    prompts = tiny_prompts(8)
    expected = reference_outputs(bloom_folder, prompts, max_tokens=6)
    # Keys and values of two layers, three times: padded, and beside the batch it is made from.
    block_bytes = 2 * 2 * 64 * 4 * BLOCK_SIZE * 3
    # Half of the memory is for the 16 tokens that any row may be padded by: two blocks a row.
    engine = make_engine(bloom_folder, kv_memory_bytes=24 * block_bytes, watermark=0.0)
    assert (engine.max_num_seqs, engine.stats().kv_blocks_total) == (6, 12)
    outputs = run_all(engine, prompts, max_tokens=6)
    assert [output.token_ids for output in outputs] == expected


def test_states_of_fixed_size_bound_the_lines_at_once(
    make_engine: EngineFactory, make_family: FamilyFactory
) -> None:
    folder = make_family("mamba", {"num_hidden_layers": 2, "state_size": 8})
    # Two layers with 128 channels: 4 inputs of a convolution and 8 states, three times.
    sequence_bytes = 2 * 128 * (4 + 8) * 4 * 3
    engine = make_engine(folder, kv_memory_bytes=2 * sequence_bytes)
    assert engine.max_num_seqs == 2
    assert engine.max_model_len == 256
    prompts = tiny_prompts(3)
    expected = reference_outputs(folder, prompts, max_tokens=3)
    assert [o.token_ids for o in run_all(engine, prompts, max_tokens=3)] == expected
    with pytest.raises(InvalidParams, match="before its first token") as caught:
        make_engine(folder, kv_memory_bytes=sequence_bytes - 100)
    assert caught.value.param == "kv_memory_bytes"


def test_preempted_line_of_a_model_with_inexact_steps_is_replayed(
    make_engine: EngineFactory, make_family: FamilyFactory
) -> None:
    zamba = next(family for family in FAMILIES if family.model_type == "zamba2")
    folder = make_family("zamba2", {"num_hidden_layers": 2, **zamba.settings})
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=0)
    told = []
    for preempt_every in (0, 2):
        engine = make_engine(folder, preempt_every=preempt_every)
        engine.add_request("r", [65, 66, 67, 68], params)
        output = drain(engine)["r"]
        assert bool(output.metrics.preemptions) == bool(preempt_every)
        told.append([entry.logprob for entry in output.logprobs or ()])
    assert told[0] == pytest.approx(told[1], abs=1e-5)


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


def test_model_that_fails_the_probe_runs_padded_and_windows_are_batched_right(
    make_engine: EngineFactory, make_family: FamilyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "open_attention", ForgetfulAttention)
    settings = {"num_hidden_layers": 2, "head_dim": 16, "sliding_window": 9}
    folder = make_family("gemma2", settings)
    prompts = tiny_prompts(6)
    expected = reference_outputs(folder, prompts, max_tokens=6)
    engine = make_engine(folder, preempt_every=3)
    assert engine.lane == "padded"
    assert "gives other logits through the paged lane than by itself" in engine.lane_reason
    assert f"lane: padded, batches are padded ({engine.lane_reason})" in engine.description
    assert [output.token_ids for output in run_all(engine, prompts, max_tokens=6)] == expected


def test_whole_prompts_pass_the_budget_one_at_a_time() -> None:
    config = EngineConfig(
        model=Path("m"), max_num_batched_tokens=10, block_size=4, enable_prefix_caching=False
    )
    blocks = BlockManager(100, 4, enable_prefix_caching=False)
    scheduler = Scheduler(config, blocks, whole_prompts=True)
    params = SamplingParams(max_tokens=4)
    for name, length in (("a", 25), ("b", 6), ("c", 4), ("d", 12)):
        scheduler.add(Request(name, [1] * length, params))
    steps = []
    for _ in range(4):
        plan = scheduler.schedule(0)
        steps.append(
            [(r.request_id, n) for r, n in zip(plan.requests, plan.num_tokens, strict=True)]
        )
        for request, num_tokens in zip(plan.requests, plan.num_tokens, strict=True):
            scheduler.record(request, num_tokens)
            request.append(1)
        scheduler.check_integrity()
    assert steps == [
        [("a", 25)],
        [("a", 1), ("b", 6)],
        [("a", 1), ("b", 1), ("c", 4)],
        [("a", 1), ("b", 1), ("c", 1), ("d", 12)],
    ]
