"""The engine's door: errors stay with their request, blocks come back, and times add up."""

import json
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import BLOCK_SIZE, EOS_ID, VOCAB_SIZE, EngineFactory, block_bytes, save_model

from engine.errors import EngineError, InvalidParams, PromptTooLong
from engine.llm_engine import LLMEngine
from engine.outputs import FinishReason, RequestOutput
from engine.sampling_params import SamplingParams

BAD_ID = 300
PROMPT = [65, 66, 67, 68]


def drain(engine: LLMEngine) -> dict[str, RequestOutput]:
    finished: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        finished.update((output.request_id, output) for output in engine.step())
    return finished


def generate(
    engine: LLMEngine, prompt: list[int], params: SamplingParams, name: str = "r"
) -> RequestOutput:
    engine.add_request(name, prompt, params)
    return drain(engine)[name]


@pytest.fixture(scope="session")
def poisoned_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose embedding of one token id is NaN."""
    folder = save_model(tmp_path_factory.mktemp("poisoned"))
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.embed_tokens.weight"][BAD_ID] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"seed": "x"}, "seed"),
        ({"stop": ("",)}, "stop"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"stop_token_ids": (VOCAB_SIZE,)}, "stop_token_ids"),
    ],
)
def test_bad_params_name_their_field_and_nothing_enters(
    make_engine: EngineFactory, fields: dict[str, object], param: str
) -> None:
    engine = make_engine()
    params = SamplingParams(**({"max_tokens": 4} | fields))  # type: ignore[arg-type]
    with pytest.raises(InvalidParams) as caught:
        engine.add_request("r", PROMPT, params)
    assert caught.value.param == param
    assert caught.value.code == "invalid_params"
    assert not engine.has_unfinished()


@pytest.mark.parametrize("prompt", [[], [-1], [VOCAB_SIZE]])
def test_prompts_outside_the_vocabulary_are_refused(
    make_engine: EngineFactory, prompt: list[int]
) -> None:
    with pytest.raises(InvalidParams) as caught:
        make_engine().add_request("r", prompt, SamplingParams(max_tokens=4))
    assert caught.value.param == "prompt"


def test_request_id_in_use_is_refused(make_engine: EngineFactory) -> None:
    engine = make_engine()
    engine.add_request("r", PROMPT, SamplingParams(max_tokens=2))
    with pytest.raises(InvalidParams, match="in use"):
        engine.add_request("r", PROMPT, SamplingParams(max_tokens=2))
    assert len(drain(engine)) == 1


def test_prompt_must_leave_room_for_one_token(make_engine: EngineFactory) -> None:
    engine = make_engine(max_model_len=20)
    with pytest.raises(PromptTooLong) as caught:
        engine.add_request("long", [1] * 20, SamplingParams(max_tokens=1))
    assert caught.value.code == "context_length_exceeded"
    output = generate(engine, [1] * 19, SamplingParams(max_tokens=9, ignore_eos=True))
    assert output.finish_reason is FinishReason.LENGTH
    assert output.metrics.output_tokens == 1


def test_pool_smaller_than_the_model_length_is_the_limit(make_engine: EngineFactory) -> None:
    engine = make_engine(kv_memory_bytes=3 * block_bytes())
    assert engine.max_model_len == 3 * BLOCK_SIZE
    with pytest.raises(PromptTooLong):
        engine.add_request("long", [1] * (3 * BLOCK_SIZE), SamplingParams(max_tokens=1))
    output = generate(engine, PROMPT, SamplingParams(max_tokens=200, ignore_eos=True))
    assert output.finish_reason is FinishReason.LENGTH
    assert output.metrics.prompt_tokens + output.metrics.output_tokens == 3 * BLOCK_SIZE


def test_pool_without_a_single_block_is_refused(make_engine: EngineFactory) -> None:
    with pytest.raises(InvalidParams) as caught:
        make_engine(kv_memory_bytes=block_bytes() - 1)
    assert caught.value.param == "kv_memory_bytes"


def test_end_token_counts_but_is_not_in_the_text(make_engine: EngineFactory) -> None:
    engine = make_engine()
    free = generate(engine, PROMPT, SamplingParams(max_tokens=6, ignore_eos=True))
    third = free.token_ids[2]
    assert third not in free.token_ids[:2]
    stopped = generate(engine, PROMPT, SamplingParams(max_tokens=6, stop_token_ids=(third,)))
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.token_ids == free.token_ids[:3]
    assert stopped.metrics.output_tokens == 3
    assert stopped.text == engine.tokenizer.decode(free.token_ids[:2])


def test_models_own_end_token_stops_unless_ignored(
    make_engine: EngineFactory, tmp_path: Path
) -> None:
    folder = save_model(tmp_path)
    free = generate(make_engine(folder), PROMPT, SamplingParams(max_tokens=6, ignore_eos=True))
    third = free.token_ids[2]
    settings = {"eos_token_id": [EOS_ID, third]}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    engine = make_engine(folder)
    stopped = generate(engine, PROMPT, SamplingParams(max_tokens=6))
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.token_ids == free.token_ids[:3]
    ignored = generate(engine, PROMPT, SamplingParams(max_tokens=6, ignore_eos=True))
    assert ignored.finish_reason is FinishReason.LENGTH
    assert ignored.token_ids == free.token_ids


def test_stop_string_cuts_the_text_and_ends_the_request(make_engine: EngineFactory) -> None:
    engine = make_engine()
    params = SamplingParams(max_tokens=40, temperature=1.5, seed=8, ignore_eos=True)
    text = generate(engine, PROMPT, params).text
    stop = text[12:15]
    output = generate(
        engine,
        PROMPT,
        SamplingParams(max_tokens=40, temperature=1.5, seed=8, ignore_eos=True, stop=(stop,)),
    )
    assert output.finish_reason is FinishReason.STOP
    assert output.text == text.split(stop)[0]
    assert output.metrics.output_tokens < 40


def test_length_is_checked_before_stop_strings_but_the_text_is_cut(
    make_engine: EngineFactory,
) -> None:
    engine = make_engine()
    free = generate(engine, PROMPT, SamplingParams(max_tokens=4, ignore_eos=True))
    stop = free.text[-5:]
    assert free.text.count(stop) == 1
    params = SamplingParams(max_tokens=4, ignore_eos=True, stop=(stop,))
    output = generate(engine, PROMPT, params)
    assert output.finish_reason is FinishReason.LENGTH
    assert output.token_ids == free.token_ids
    assert output.text == free.text[:-5]


def sampled(engine: LLMEngine, indices: Iterable[int]) -> dict[str, tuple[int, ...]]:
    for index in indices:
        params = SamplingParams(
            max_tokens=16,
            temperature=(0.0, 0.7, 1.0, 1.3)[index % 4],
            top_k=(0, 20)[index % 2],
            top_p=(1.0, 0.9, 0.5)[index % 3],
            seed=index,
            ignore_eos=True,
        )
        engine.add_request(str(index), [index + 1] * (1 + index), params)
    return {name: output.token_ids for name, output in drain(engine).items()}


def test_seeded_sampling_is_the_same_alone_batched_and_preempted(
    make_engine: EngineFactory,
) -> None:
    together = sampled(make_engine(), range(12))
    engine = make_engine()
    alone: dict[str, tuple[int, ...]] = {}
    for index in range(12):
        alone |= sampled(engine, [index])
    preempting = make_engine(preempt_every=2, long_prefill_tokens=3)
    assert together == alone == sampled(preempting, reversed(range(12)))
    assert preempting.stats().preemptions > 5


@pytest.mark.parametrize("chunk", [2, 256])
def test_nan_logits_fail_one_request_and_never_enter_the_prefix_cache(
    make_engine: EngineFactory, llama_folder: Path, poisoned_folder: Path, chunk: int
) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    prefix = list(range(40, 40 + 2 * BLOCK_SIZE))
    prompts = {
        "before": PROMPT,
        "bad": [*prefix[:-2], BAD_ID, *prefix[-1:], *PROMPT],
        "after": [*prefix, *PROMPT],
    }
    expected = {
        name: generate(make_engine(llama_folder), prompt, params).token_ids
        for name, prompt in prompts.items()
    }
    engine = make_engine(
        poisoned_folder, kv_memory_bytes=12 * block_bytes(), long_prefill_tokens=chunk
    )
    for _ in range(4):  # so that every block has once held NaN
        for name, prompt in prompts.items():
            engine.add_request(name, prompt, params)
        outputs = drain(engine)
        engine.check_integrity()
        assert outputs["before"].token_ids == expected["before"]
        assert outputs["after"].token_ids == expected["after"]
        bad = outputs["bad"]
        assert bad.finish_reason is FinishReason.ERROR
        assert bad.error is not None
        assert bad.error.code == "invalid_logits"
        assert bad.token_ids == ()
        assert bad.metrics.cached_tokens < 2 * BLOCK_SIZE


def test_abort_frees_blocks_at_once_and_keeps_the_tokens(make_engine: EngineFactory) -> None:
    engine = make_engine(max_num_seqs=2, merge_duplicates=False)
    for index in range(4):
        engine.add_request(str(index), PROMPT, SamplingParams(max_tokens=50, ignore_eos=True))
    for _ in range(5):
        engine.step()
    outputs = engine.abort(["0", "3", "unknown", "0"])
    engine.check_integrity()
    assert [output.request_id for output in outputs] == ["0", "3"]
    running, waiting = outputs
    assert {o.finish_reason for o in outputs} == {FinishReason.ABORT}
    assert len(running.token_ids) >= 4
    assert running.text == engine.tokenizer.decode(running.token_ids)
    assert running.metrics.device_us > 0
    assert waiting.token_ids == ()
    assert waiting.metrics.device_us == waiting.metrics.first_token_us == 0
    assert waiting.metrics.queue_us == waiting.metrics.total_us
    engine.abort(["1", "2"])
    assert engine.stats().kv_blocks_used == 0
    assert engine.num_unfinished == 0
    assert engine.step() == []


def test_random_aborts_lose_no_block(make_engine: EngineFactory) -> None:
    engine = make_engine(kv_memory_bytes=20 * block_bytes(), preempt_every=4, watermark=0.0)
    generator = torch.Generator().manual_seed(0)
    ended = 0
    for number in range(120):
        length = int(torch.randint(1, 60, (), generator=generator))
        params = SamplingParams(max_tokens=1 + number % 13, ignore_eos=True)
        engine.add_request(str(number), [number % 5] * length, params)
        ended += len(engine.step())
        if number % 3 == 0:
            victim = int(torch.randint(0, number + 1, (), generator=generator))
            ended += len(engine.abort([str(victim)]))
        engine.check_integrity()
    ended += len(drain(engine))
    assert ended == 120
    assert engine.stats().kv_blocks_used == 0


def test_nobody_pays_for_the_time_in_which_there_was_nothing_to_do(
    make_engine: EngineFactory,
) -> None:
    engine = make_engine()
    engine.add_request("gone", [1, 2, 3], SamplingParams(max_tokens=9, ignore_eos=True))
    engine.step()
    engine.abort(["gone"])
    time.sleep(0.2)
    engine.add_request("new", [1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True))
    (output,) = drain(engine).values()
    assert 0 < output.metrics.device_us <= output.metrics.total_us


def test_shares_of_step_time_add_up_exactly(make_engine: EngineFactory) -> None:
    engine = make_engine(long_prefill_tokens=7)
    for index in range(9):
        params = SamplingParams(max_tokens=3 + index, ignore_eos=True)
        engine.add_request(str(index), [index] * (index * 4 + 1), params)
    outputs, busy = [], 0
    while engine.has_unfinished():
        outputs += engine.step()
        if len(outputs) == 3:
            outputs += engine.abort(["8"])
        busy += engine.stats().last_step_us
    assert sum(output.metrics.device_us for output in outputs) == engine.stats().busy_us == busy
    assert 0 < engine.stats().host_us < busy


def test_times_and_counts_of_a_request_agree(make_engine: EngineFactory) -> None:
    engine = make_engine()
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    first = generate(engine, list(range(1, 34)), params, "first")
    second = generate(engine, list(range(1, 34)), params, "second")
    assert first.token_ids == second.token_ids
    assert (first.metrics.cached_tokens, second.metrics.cached_tokens) == (0, 32)
    for metrics in (first.metrics, second.metrics):
        assert metrics.queue_us + metrics.prefill_us == metrics.first_token_us
        assert metrics.first_token_us + metrics.decode_us == metrics.total_us
        assert 0 < metrics.device_us <= metrics.total_us
        assert (metrics.prompt_tokens, metrics.output_tokens) == (33, 5)
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.output_tokens) == (66, 10)
    assert (stats.prefix_hit_tokens, stats.prefix_query_tokens) == (32, 66)
    assert stats.steps == 10


def test_statistics_show_blocks_and_fragmentation(make_engine: EngineFactory) -> None:
    engine = make_engine(kv_memory_bytes=10 * block_bytes())
    engine.add_request("r", [1] * (BLOCK_SIZE + 2), SamplingParams(max_tokens=4, ignore_eos=True))
    engine.step()
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (1, 0)
    assert (stats.kv_blocks_used, stats.kv_blocks_total) == (2, 10)
    assert stats.kv_utilization == 0.2
    assert stats.fragmentation == (BLOCK_SIZE - 2) / (2 * BLOCK_SIZE)
    drain(engine)


def test_admission_learns_how_long_outputs_are(make_engine: EngineFactory) -> None:
    engine = make_engine(kv_memory_bytes=12 * block_bytes())
    any_ends = SamplingParams(max_tokens=64, stop_token_ids=tuple(range(VOCAB_SIZE)))
    for index in range(24):
        engine.add_request(str(index), [index], any_ends)
    ended = []
    while engine.has_unfinished():
        ended.append(len(engine.step()))
    assert ended == [4, 4, 4, 4, 8]  # three blocks each, until 16 have ended with one


def test_admission_expects_no_more_than_the_model_can_hold(make_engine: EngineFactory) -> None:
    engine = make_engine(kv_memory_bytes=6 * block_bytes(), max_model_len=3 * BLOCK_SIZE)
    for name, token_id in [("a", 1), ("b", 2)]:
        engine.add_request(name, [token_id], SamplingParams(max_tokens=1000, ignore_eos=True))
    engine.step()
    assert engine.stats().running == 2
    drain(engine)
    assert engine.stats().preemptions == 0


def test_urgent_request_overtakes_the_queue(make_engine: EngineFactory) -> None:
    engine = make_engine(max_num_seqs=1, merge_duplicates=False)
    for name, priority in [("a", 0), ("b", 0), ("urgent", 1)]:
        engine.add_request(name, PROMPT, SamplingParams(max_tokens=2, ignore_eos=True), priority)
    assert list(drain(engine)) == ["urgent", "a", "b"]


def test_padded_logits_are_never_sampled(make_engine: EngineFactory, tmp_path: Path) -> None:
    folder = save_model(tmp_path, vocab_size=VOCAB_SIZE + 64)
    engine = make_engine(folder)
    assert engine.vocab_size == VOCAB_SIZE + 64
    params = SamplingParams(max_tokens=60, temperature=5.0, seed=1, ignore_eos=True)
    assert max(generate(engine, PROMPT, params).token_ids) < VOCAB_SIZE


def test_description_tells_device_dtype_attention_and_lane(make_engine: EngineFactory) -> None:
    description = make_engine().description
    for part in ("cpu", "float32", "attention: ", "paged"):
        assert part in description


def test_every_error_has_a_code_and_a_sentence() -> None:
    error = InvalidParams("top_p must be above 0.", "top_p")
    assert isinstance(error, EngineError)
    assert str(error) == error.message == "top_p must be above 0."
