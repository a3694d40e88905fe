"""Guessing changes how many steps an output takes, and nothing else about it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bold import BoldSpeculation
from test_exactness import tiny_prompts
from test_llm_engine import BAD_ID, drain, generate, poisoned_folder
from tiny_models import BLOCK_SIZE, EOS_ID, EngineFactory, FamilyFactory, block_bytes, save_model

from engine import llm_engine
from engine.config import MOST_GUESSES
from engine.errors import InvalidParams
from engine.kernels.build import usable_levels
from engine.llm_engine import LLMEngine
from engine.models.likeliest import Likeliest
from engine.outputs import FinishReason, RequestOutput
from engine.pooling import Pooling, PoolingParams
from engine.proposer import PRIOR, NgramProposer
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.speculation import Speculation

__all__ = ["poisoned_folder"]  # a fixture

GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)

pytestmark = pytest.mark.skipif(not usable_levels(), reason="no kernels for this processor")


@pytest.fixture(scope="session")
def looping_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose outputs fall into loops and out of them again."""
    return save_model(tmp_path_factory.mktemp("looping"), initializer_range=0.1)


@pytest.fixture
def make_plain(make_engine: EngineFactory, looping_folder: Path) -> EngineFactory:
    """Engines that don't guess."""
    return lambda model=looping_folder, **overrides: make_engine(model, **overrides)


@pytest.fixture
def make_bold(make_plain: EngineFactory, monkeypatch: pytest.MonkeyPatch) -> EngineFactory:
    """Engines that guess whenever they may."""
    monkeypatch.setattr(llm_engine, "Speculation", BoldSpeculation)
    guessing = {"num_speculative_tokens": MOST_GUESSES}
    return lambda *args, **overrides: make_plain(*args, **(guessing | overrides))


def various_prompts(count: int = 24) -> list[list[int]]:
    """Random ones, some of which repeat themselves."""
    return [p * 3 if i % 4 == 1 else p for i, p in enumerate(tiny_prompts(count))]


def answers(
    engine: LLMEngine, prompts: list[list[int]], params: SamplingParams = GREEDY
) -> list[RequestOutput]:
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, params)
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        outputs.update((output.request_id, output) for output in engine.step())
        engine.check_integrity()
    assert engine.stats().kv_blocks_used == 0
    return [outputs[str(index)] for index in range(len(prompts))]


def assert_same(found: list[RequestOutput], expected: list[RequestOutput]) -> None:
    """All but the times, and what depends on who happened to be computed when."""
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert (one.text, one.finish_reason) == (other.text, other.finish_reason)
        assert one.metrics.prompt_tokens == other.metrics.prompt_tokens
        assert one.metrics.output_tokens == other.metrics.output_tokens


def assert_held(engine: LLMEngine) -> None:
    stats = engine.stats()
    assert 0 < stats.held_tokens < stats.guessed_tokens


@pytest.mark.parametrize("preempt_every", [0, 3])
@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("chunk", [3, 256])
def test_outputs_are_those_without_guesses(
    make_plain: EngineFactory,
    make_bold: EngineFactory,
    chunk: int,
    prefix_caching: bool,
    preempt_every: int,
) -> None:
    settings = {"long_prefill_tokens": chunk, "enable_prefix_caching": prefix_caching}
    expected = answers(make_plain(**settings), various_prompts())
    engine = make_bold(preempt_every=preempt_every, **settings)
    assert_same(answers(engine, various_prompts()), expected)
    assert_held(engine)
    assert (engine.stats().preemptions > 0) == bool(preempt_every)
    assert engine.stats().output_tokens == sum(len(output.token_ids) for output in expected)


def test_fewer_steps_are_taken(make_plain: EngineFactory, make_bold: EngineFactory) -> None:
    plain, bold = make_plain(max_num_seqs=2), make_bold(max_num_seqs=2)
    for engine in (plain, bold):
        answers(engine, various_prompts())
    assert plain.stats().guessed_tokens == 0
    assert bold.stats().steps < plain.stats().steps


def test_by_its_own_measurements_too_an_engine_changes_no_output(
    make_plain: EngineFactory,
) -> None:
    expected = answers(make_plain(), various_prompts())
    assert_same(
        answers(make_plain(num_speculative_tokens=MOST_GUESSES), various_prompts()), expected
    )


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 8, 9, 23])
def test_outputs_end_at_their_limit(
    make_plain: EngineFactory, make_bold: EngineFactory, max_tokens: int
) -> None:
    params = replace(GREEDY, max_tokens=max_tokens)
    prompts = [[5] * 9, [1, 2, 3] * 5, *various_prompts(6)]
    found = answers(make_bold(), prompts, params)
    assert_same(found, answers(make_plain(), prompts, params))
    assert {output.finish_reason for output in found} == {FinishReason.LENGTH}


def test_outputs_end_where_the_model_s_length_does(
    make_plain: EngineFactory, make_bold: EngineFactory
) -> None:
    prompts, params = various_prompts(8), replace(GREEDY, max_tokens=500)
    expected = answers(make_plain(max_model_len=120), prompts, params)
    engine = make_bold(max_model_len=120)
    assert_same(answers(engine, prompts, params), expected)
    assert_held(engine)
    assert all(o.metrics.prompt_tokens + o.metrics.output_tokens == 120 for o in expected)


def test_end_tokens_stop_strings_and_least_lengths_hold_inside_of_guesses(
    make_plain: EngineFactory, make_bold: EngineFactory
) -> None:
    prompts, plain, bold = various_prompts(12), make_plain(), make_bold()
    free = answers(plain, prompts)
    for place in (17, 26, 33):
        for number, prompt in enumerate(prompts):
            token_id, text = free[number].token_ids[place], free[number].text
            for params in (
                replace(GREEDY, stop_token_ids=(token_id,)),
                replace(GREEDY, stop_token_ids=(token_id,), min_tokens=place - 3),
                replace(GREEDY, stop=(text[place : place + 3],)),
                replace(GREEDY, stop=(text[place : place + 2],), min_tokens=place),
            ):
                assert_same([generate(bold, prompt, params)], [generate(plain, prompt, params)])
    assert_held(bold)


def test_the_model_s_own_end_token_ends_an_output_amid_guesses(
    make_plain: EngineFactory, make_bold: EngineFactory, tmp_path: Path
) -> None:
    folder = save_model(tmp_path, initializer_range=0.1)
    prompts = various_prompts()
    free = answers(make_plain(folder), prompts)
    ids = [token_id for output in free for token_id in output.token_ids[20:]]
    common = max(set(ids), key=ids.count)
    told = {"eos_token_id": [EOS_ID, common]}
    (folder / "generation_config.json").write_text(json.dumps(told))
    params = replace(GREEDY, ignore_eos=False)
    expected = answers(make_plain(folder), prompts, params)
    engine = make_bold(folder)
    assert_same(answers(engine, prompts, params), expected)
    assert_held(engine)
    assert {o.finish_reason for o in expected} == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.parametrize("watermark", [0.0, 0.1])
def test_a_pool_that_is_too_small_changes_nothing(
    make_plain: EngineFactory, make_bold: EngineFactory, watermark: float
) -> None:
    prompts = various_prompts()
    expected = answers(make_plain(), prompts)
    small = {"kv_memory_bytes": 24 * block_bytes(), "watermark": watermark}
    for preempt_every in (0, 4):
        engine = make_bold(preempt_every=preempt_every, **small)
        assert_same(answers(engine, prompts), expected)
        assert_held(engine)
        assert engine.stats().preemptions > 0


def test_rows_that_guess_don_t_change_those_beside_them(
    make_plain: EngineFactory, make_bold: EngineFactory
) -> None:
    other = (
        {"temperature": 0.9, "seed": 3},
        {"logprobs": 2},
        {"frequency_penalty": 0.4},
        {"min_tokens": 9},
        {},
        {"logit_bias": {7: 2.0}},
        {},
    )
    plain, bold = make_plain(), make_bold()
    for engine in (plain, bold):
        for index, prompt in enumerate(various_prompts()):
            params = replace(GREEDY, **other[index % len(other)])  # type: ignore[arg-type]
            engine.add_request(str(index), prompt, params)
    expected, found = drain(plain), drain(bold)
    assert_same([found[name] for name in expected], list(expected.values()))
    for name, output in expected.items():
        told, known = found[name].logprobs or (), output.logprobs or ()
        assert [t.logprob for t in told] == pytest.approx([t.logprob for t in known], abs=1e-5)
    assert_held(bold)


def test_pooled_rows_in_the_same_steps_verify_nothing_and_change_nothing(
    make_plain: EngineFactory, make_bold: EngineFactory
) -> None:
    prompts, plain, bold = various_prompts(), make_plain(), make_bold()
    for engine in (plain, bold):
        engine.add_request("0", [5] * 9, GREEDY)
        for index, prompt in enumerate(prompts[1:], start=1):
            engine.add_request(str(index), prompt, GREEDY)
            engine.add_pooling_request(f"pooled-{index}", prompt, PoolingParams(Pooling.MEAN))
    expected, found = drain(plain), drain(bold)
    for name, output in expected.items():
        assert found[name].token_ids == output.token_ids
        if output.embedding is not None:
            assert found[name].embedding is not None
            assert np.allclose(found[name].embedding, output.embedding, atol=2e-6)
    assert_held(bold)


def test_equal_requests_copy_and_inherit_what_was_guessed(
    make_plain: EngineFactory, make_bold: EngineFactory
) -> None:
    prompt = [1, 2, 3] * 5
    alone = generate(make_plain(), prompt, GREEDY)
    for steps in (0, 1, 2, 3):
        engine = make_bold()
        for name in "abc":
            engine.add_request(name, prompt, GREEDY)
        for _ in range(steps):
            assert engine.step() == []
        (aborted,) = engine.abort("a")
        engine.check_integrity()
        assert aborted.token_ids == alone.token_ids[: len(aborted.token_ids)]
        outputs = drain(engine)
        assert_same([outputs["b"], outputs["c"]], [alone, alone])
        assert_held(engine)
        assert engine.stats().output_tokens == 40


def test_random_aborts_lose_no_block(make_plain: EngineFactory, make_bold: EngineFactory) -> None:
    prompts = various_prompts()
    expected = answers(make_plain(), prompts)
    engine = make_bold(kv_memory_bytes=30 * block_bytes(), preempt_every=5)
    draw = np.random.default_rng(0)
    outputs: list[RequestOutput] = []
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), prompt, GREEDY)
        outputs += engine.step()
        if index % 3 == 0:
            outputs += engine.abort([str(draw.integers(0, index + 1))])
        engine.check_integrity()
    outputs += drain(engine).values()
    assert_held(engine)
    assert sorted(int(output.request_id) for output in outputs) == list(range(len(prompts)))
    for output in outputs:
        whole = expected[int(output.request_id)].token_ids
        assert output.token_ids == whole[: len(output.token_ids)]
        assert len(output.token_ids) == 40 or output.finish_reason is FinishReason.ABORT


def test_prefixes_made_of_guesses_are_found_again(
    make_plain: EngineFactory, make_bold: EngineFactory
) -> None:
    prompt = [1, 2, 3] * 5
    plain, bold = make_plain(), make_bold()
    for engine in (plain, bold):
        first = generate(engine, prompt, GREEDY)
        longer = [*prompt, *first.token_ids]
        again = generate(engine, longer, GREEDY)
        assert again.metrics.cached_tokens == (len(longer) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert_held(bold)
    assert_same([again], [generate(plain, longer, GREEDY)])


def test_shares_of_step_time_still_add_up(make_bold: EngineFactory) -> None:
    engine = make_bold()
    outputs = answers(engine, various_prompts())
    assert_held(engine)
    assert sum(output.metrics.device_us for output in outputs) == engine.stats().busy_us


@pytest.mark.parametrize("family", ["phi3", "bloom"])
def test_lanes_that_can_t_verify_never_guess(
    make_bold: EngineFactory, make_family: FamilyFactory, family: str
) -> None:
    settings: dict[str, object] = {"num_hidden_layers": 2}
    if family == "bloom":
        settings |= {"n_head": 4, "seq_length": 256}
    engine = make_bold(make_family(family, settings))
    generate(engine, [5] * 9, GREEDY)
    assert engine.stats().guessed_tokens == 0


@pytest.mark.parametrize("count", [-1, 8])
def test_guesses_that_no_step_takes_are_refused(make_bold: EngineFactory, count: int) -> None:
    with pytest.raises(InvalidParams) as caught:
        make_bold(num_speculative_tokens=count)
    assert caught.value.param == "num_speculative_tokens"


class Spoiling(Speculation):
    """Every other step it guesses a token whose embedding is NaN."""

    def propose(self, request: Request, room: int) -> list[int]:
        request.proposer = request.proposer or NgramProposer()
        if not request.proposer.hold_rate:
            request.proposer.hold_rate = PRIOR
            return []
        return [BAD_ID][:room]


def test_a_guess_that_gives_nan_ends_nothing(
    make_engine: EngineFactory, poisoned_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = replace(GREEDY, max_tokens=12)
    expected = answers(make_engine(poisoned_folder), various_prompts(6), params)
    monkeypatch.setattr(llm_engine, "Speculation", Spoiling)
    engine = make_engine(poisoned_folder, num_speculative_tokens=1)
    assert_same(answers(engine, various_prompts(6), params), expected)
    assert engine.stats().guessed_tokens > engine.stats().held_tokens == 0


def test_a_guess_holds_if_it_is_the_likeliest_and_those_before_it_held() -> None:
    row = [9, 5, 6, 7, 8, 9]  # the likeliest behind the last known token and behind each guess
    finite = [True] * 6
    assert Likeliest(row, finite).following(1, [5, 6, 0, 8]) == ((5, 6, 7), True)
    assert Likeliest(row, finite).following(1, [5, 6, 7, 8]) == ((5, 6, 7, 8, 9), True)
    assert Likeliest(row, finite).following(1, [0, 6]) == ((5,), True)
    assert Likeliest(row, finite).following(0, []) == ((9,), True)
    # What isn't finite behind a guess says nothing about the tokens before it.
    assert Likeliest(row, [*finite[:3], False, True, True]).following(1, [5, 6, 7]) == (
        (5, 6),
        True,
    )
    assert not Likeliest(row, [True, False, *finite[2:]]).following(1, [5])[1]
