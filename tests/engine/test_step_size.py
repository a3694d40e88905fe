"""The size of a step is found by timing: near the best rate, within the time that it may take."""

import pytest
from tiny_models import BLOCK_SIZE, EngineFactory, FamilyFactory, block_bytes

from engine.errors import InvalidParams
from engine.sampling_params import SamplingParams
from engine.step_size import SMALLEST, best_size

PROMPT = [65, 66, 67, 68]


def test_a_cost_that_is_mostly_fixed_takes_the_largest_size() -> None:
    assert best_size(lambda size: 0.1 + size / 10_000, most=256, seconds=1)[0] == 256


def test_a_cost_that_only_grows_takes_the_smallest_size() -> None:
    assert best_size(lambda size: size / 100, most=256, seconds=10)[0] == SMALLEST


def test_sizes_beyond_the_time_are_not_taken_and_larger_ones_not_tried() -> None:
    tried = []

    def timed(size: int) -> float:
        tried.append(size)
        return 0.1 + size / 1000

    assert best_size(timed, most=512, seconds=0.2)[0] == 64
    assert tried == [16, 32, 64, 128]


def test_the_smallest_size_is_allowed_whatever_it_takes() -> None:
    assert best_size(lambda size: 100.0 + size / 1000, most=512, seconds=1)[0] == SMALLEST


def test_a_limit_between_two_sizes_is_tried_itself() -> None:
    assert best_size(lambda size: 1.0, most=100, seconds=2)[0] == 100


def test_a_limit_below_the_smallest_size_holds() -> None:
    assert best_size(lambda size: 1.0, most=3, seconds=2)[0] == 3


def test_an_engine_fits_its_steps_below_its_limits(make_engine: EngineFactory) -> None:
    engine = make_engine(step_seconds=5.0, max_num_seqs=24, max_num_batched_tokens=40)
    assert 1 <= engine.max_num_seqs <= 24
    assert f"steps of up to {engine.max_num_seqs} rows and " in engine.description


def test_a_fitted_engine_answers_like_a_fixed_one(make_engine: EngineFactory) -> None:
    answers = []
    for step_seconds in (None, 5.0):
        engine = make_engine(step_seconds=step_seconds)
        for number in range(40):
            params = SamplingParams(max_tokens=6, ignore_eos=True)
            engine.add_request(str(number), [*PROMPT, number], params)
        outputs = {}
        while engine.has_unfinished():
            outputs.update((o.request_id, o.token_ids) for o in engine.step())
        answers.append(outputs)
    assert answers[0] == answers[1]


def test_a_pool_of_few_blocks_bounds_the_probe(make_engine: EngineFactory) -> None:
    few = 3
    engine = make_engine(
        step_seconds=5.0, kv_memory_bytes=few * block_bytes(), block_size=BLOCK_SIZE
    )
    assert engine.max_num_seqs <= few


def test_a_model_of_few_positions_is_timed_within_them(
    make_family: FamilyFactory, make_engine: EngineFactory
) -> None:
    """Learned positions end where the table does; a step holds several prompts then."""
    folder = make_family("gpt2", {"max_position_embeddings": 24})
    engine = make_engine(folder, step_seconds=5.0, max_num_batched_tokens=100)
    assert "lane: paged" in engine.description
    engine.add_request("r", PROMPT, SamplingParams(max_tokens=4, ignore_eos=True))
    while engine.has_unfinished():
        engine.step()


def test_a_profile_tells_nothing_of_what_was_only_timed(make_engine: EngineFactory) -> None:
    engine = make_engine(step_seconds=5.0)
    assert all(abs(seconds) < 1e-9 for seconds in engine.profile().values())


def test_no_time_at_all_is_refused(make_engine: EngineFactory) -> None:
    with pytest.raises(InvalidParams, match="step_seconds must be above 0"):
        make_engine(step_seconds=0.0)
