"""Equal requests are computed once, and nobody can tell but by the metrics."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_llm_engine import BAD_ID, drain, generate, poisoned_folder
from tiny_models import EngineFactory

from engine.llm_engine import LLMEngine
from engine.outputs import FinishReason, RequestOutput
from engine.pooling import Pooling, PoolingParams
from engine.sampling_params import SamplingParams

__all__ = ["poisoned_folder"]  # a fixture

PROMPT = list(range(40, 60))
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


def added(engine: LLMEngine, names: str, params: SamplingParams = GREEDY) -> None:
    for name in names:
        engine.add_request(name, PROMPT, params)


def stepped(engine: LLMEngine, times: int) -> None:
    for _ in range(times):
        assert engine.step() == []
        engine.check_integrity()


def test_copies_get_the_original_s_answer_and_cost_nothing(make_engine: EngineFactory) -> None:
    params = replace(GREEDY, logprobs=3)
    alone = generate(make_engine(), PROMPT, params)
    engine = make_engine()
    added(engine, "abc", params)
    assert (engine.num_unfinished, engine.num_copies) == (3, 2)
    outputs = drain(engine)
    assert list(outputs) == ["a", "b", "c"]
    for output in outputs.values():
        assert (output.token_ids, output.text) == (alone.token_ids, alone.text)
        assert (output.logprobs, output.finish_reason) == (alone.logprobs, alone.finish_reason)
        assert output.metrics.output_tokens == 12
    original, copy = outputs["a"].metrics, outputs["b"].metrics
    stats = engine.stats()
    assert (stats.copies, stats.prompt_tokens, stats.output_tokens) == (2, 60, 12)
    assert (original.device_us, copy.device_us) == (stats.busy_us, 0)
    assert (original.cached_tokens, copy.cached_tokens) == (0, len(PROMPT))
    assert copy.queue_us + copy.prefill_us + copy.decode_us == copy.total_us
    assert engine.num_copies == 0


def test_a_copy_that_comes_late_waits_for_nothing_but_the_rest(make_engine: EngineFactory) -> None:
    engine = make_engine()
    added(engine, "a")
    stepped(engine, 8)
    added(engine, "b")
    outputs = drain(engine)
    assert outputs["b"].token_ids == outputs["a"].token_ids
    late = outputs["b"].metrics
    assert (late.queue_us, late.prefill_us, late.first_token_us) == (0, 0, 0)
    assert late.total_us < outputs["a"].metrics.total_us
    assert engine.stats().steps == 12


@pytest.mark.parametrize(
    ("other", "merges"),
    [
        ({"seed": 9, "top_p": 0.5}, True),
        ({"max_tokens": 11}, False),
        ({"stop": ("x",)}, False),
        ({"logprobs": 0}, False),
        ({"logit_bias": {3: 1.0}}, False),
        ({"temperature": 0.5}, False),
        ({"skip_special_tokens": False}, False),
    ],
)
def test_requests_are_equal_if_nothing_that_matters_differs(
    make_engine: EngineFactory, other: dict[str, object], merges: bool
) -> None:
    engine = make_engine()
    added(engine, "a")
    added(engine, "b", replace(GREEDY, **other))  # type: ignore[arg-type]
    assert engine.num_copies == merges
    engine.add_request("c", [*PROMPT, 1], GREEDY)
    assert engine.num_copies == merges
    engine.abort("abc")


def test_sampled_requests_are_equal_by_their_seed(make_engine: EngineFactory) -> None:
    engine = make_engine()
    params = replace(GREEDY, temperature=0.9, seed=4)
    added(engine, "ab", params)
    added(engine, "c", replace(params, seed=5))
    assert engine.num_copies == 1
    outputs = drain(engine)
    assert outputs["a"].token_ids == outputs["b"].token_ids != outputs["c"].token_ids


def test_nothing_is_merged_where_that_is_turned_off(make_engine: EngineFactory) -> None:
    engine = make_engine(merge_duplicates=False)
    added(engine, "ab")
    assert engine.num_copies == 0
    outputs = drain(engine)
    assert outputs["a"].token_ids == outputs["b"].token_ids
    assert outputs["b"].metrics.device_us > 0


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("caching", [True, False])
def test_an_aborted_original_leaves_its_work_to_a_copy(
    make_engine: EngineFactory, steps: int, caching: bool
) -> None:
    bias = {5: 100.0, 6: 100.0, 7: 100.0}  # so that the penalty decides, by what was said so far
    penalised = replace(GREEDY, frequency_penalty=2.0, logit_bias=bias, logprobs=1)
    alone = generate(make_engine(), PROMPT, penalised)
    engine = make_engine(enable_prefix_caching=caching)
    added(engine, "abc", penalised)
    engine.add_request("other", PROMPT[1:], penalised)
    stepped(engine, steps)
    (aborted,) = engine.abort("a")
    assert (aborted.request_id, aborted.finish_reason) == ("a", FinishReason.ABORT)
    assert aborted.token_ids == alone.token_ids[:steps]
    engine.check_integrity()
    outputs = drain(engine)
    assert outputs["b"].token_ids == outputs["c"].token_ids == alone.token_ids
    told, expected = outputs["b"].logprobs or (), alone.logprobs or ()
    assert told == outputs["c"].logprobs
    assert [t.logprob for t in told] == pytest.approx([t.logprob for t in expected], abs=1e-4)
    assert outputs["b"].text == outputs["c"].text == alone.text
    shares = [output.metrics.device_us for output in (aborted, *outputs.values())]
    assert sum(shares) == engine.stats().busy_us
    assert outputs["c"].metrics.device_us == 0
    assert engine.stats().output_tokens == 24
    if not caching:
        again = len(PROMPT) + steps - 1 if steps else 0
        assert outputs["b"].metrics.recomputed_tokens == again


def test_an_aborted_copy_harms_nobody(make_engine: EngineFactory) -> None:
    engine = make_engine()
    added(engine, "abc")
    stepped(engine, 3)
    (aborted,) = engine.abort("b")
    assert (aborted.request_id, aborted.token_ids, aborted.text) == ("b", (), "")
    assert aborted.metrics.queue_us == aborted.metrics.total_us
    assert list(drain(engine)) == ["a", "c"]


def test_a_group_aborted_as_a_whole_is_gone_at_once(make_engine: EngineFactory) -> None:
    engine = make_engine()
    added(engine, "abc")
    stepped(engine, 3)
    outputs = engine.abort("cab")
    assert [(o.request_id, len(o.token_ids)) for o in outputs] == [("c", 0), ("a", 3), ("b", 0)]
    assert (engine.num_unfinished, engine.stats().kv_blocks_used) == (0, 0)
    assert engine.stats().preemptions == 0


def test_a_group_is_as_urgent_as_its_most_urgent_member(make_engine: EngineFactory) -> None:
    engine = make_engine(max_num_seqs=1)
    for name, prompt, priority in [("x", [1], 1), ("a", PROMPT, 0), ("b", PROMPT, 2)]:
        engine.add_request(name, prompt, GREEDY, priority)
    assert list(drain(engine)) == ["a", "b", "x"]
    for name, prompt, priority in [("x", [1], 1), ("a", PROMPT, 0), ("b", PROMPT, 2)]:
        engine.add_request(name, prompt, GREEDY, priority)
    engine.abort("b")
    assert list(drain(engine)) == ["x", "a"]
    for name, prompt, priority in [("x", [1], 1), ("a", PROMPT, 0), ("b", PROMPT, 0)]:
        engine.add_request(name, prompt, GREEDY, priority)
    engine.add_request("c", PROMPT, GREEDY, 2)
    engine.abort("a")
    assert list(drain(engine)) == ["b", "c", "x"]


def test_a_copy_inherits_the_place_of_its_original(make_engine: EngineFactory) -> None:
    engine = make_engine(max_num_seqs=1)
    for name, prompt in [("x", [1]), ("a", PROMPT), ("y", [2]), ("b", PROMPT)]:
        engine.add_request(name, prompt, GREEDY)
    engine.step()
    engine.abort("a")
    assert list(drain(engine)) == ["x", "b", "y"]


def test_a_fault_is_each_request_s_own(make_engine: EngineFactory, poisoned_folder: Path) -> None:
    engine = make_engine(poisoned_folder)
    for name in "abc":
        engine.add_request(name, [40, 41, BAD_ID], GREEDY)
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        outputs |= {output.request_id: output for output in engine.step()}
        engine.check_integrity()
    assert {o.error.code for o in outputs.values() if o.error} == {"invalid_logits"}
    assert all(output.metrics.device_us > 0 for output in outputs.values())
    assert (engine.stats().copies, engine.stats().steps) == (0, 2)


@pytest.mark.parametrize("pooling", list(Pooling))
def test_equal_embeddings_are_computed_once(make_engine: EngineFactory, pooling: Pooling) -> None:
    engine = make_engine(long_prefill_tokens=7)
    for name in "abc":
        engine.add_pooling_request(name, PROMPT, PoolingParams(pooling))
    engine.add_pooling_request("short", PROMPT, PoolingParams(pooling, dimensions=8))
    stepped(engine, 1)
    engine.abort("a")
    outputs = drain(engine)
    assert engine.stats().copies == 1
    first, second = outputs["b"].embedding, outputs["c"].embedding
    assert first is not None
    assert second is not None
    assert np.array_equal(first, second)
    assert np.allclose(np.linalg.norm(first), 1)


def test_random_aborts_among_copies_lose_nobody(make_engine: EngineFactory) -> None:
    engine = make_engine(preempt_every=3, max_num_seqs=3)
    draw = np.random.default_rng(0)
    ended: list[str] = []
    for number in range(90):
        params = replace(GREEDY, max_tokens=3 + number % 2)
        engine.add_request(str(number), [number % 3] * 12, params, priority=number % 3)
        ended += [output.request_id for output in engine.step()]
        if number % 2:
            victims = {str(draw.integers(0, number + 1)) for _ in range(2)}
            ended += [output.request_id for output in engine.abort(victims)]
        engine.check_integrity()
    ended += list(drain(engine))
    assert sorted(ended, key=int) == [str(number) for number in range(90)]
    assert engine.stats().copies > 5
