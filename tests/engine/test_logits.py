"""Bias, penalties, min_tokens, min_p and log-probabilities against a plain numpy oracle."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import EOS_ID, VOCAB_SIZE, EngineFactory
from transformers import AutoModelForCausalLM

from engine.errors import InvalidParams
from engine.llm_engine import LLMEngine
from engine.logit_edits import LogitEdits
from engine.logits import edit_logits, read_logprobs
from engine.outputs import FinishReason, RequestOutput
from engine.sampler import sample
from engine.sampling_params import SamplingParams

VOCAB = 24
PROMPT = [65, 66, 67, 68, 65]


def asked(max_tokens: int = 12, **fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **fields)  # type: ignore[arg-type]


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 3) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def oracle_edit(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: list[int],
    output: list[int],
    end_ids: list[int],
) -> np.ndarray:
    """One row, token by token, in the order that the docs give."""
    row = logits.astype(np.float64).copy()
    for token_id, value in params.logit_bias.items():
        row[token_id] += value
    counts = Counter(output)
    for token_id in range(len(row)):
        if token_id in counts or (token_id in prompt and params.repetition_penalty != 1):
            over = row[token_id] > 0
            row[token_id] *= 1 / params.repetition_penalty if over else params.repetition_penalty
        row[token_id] -= params.frequency_penalty * counts[token_id]
        row[token_id] -= params.presence_penalty * (counts[token_id] > 0)
    if len(output) < params.min_tokens:
        row[end_ids] = -np.inf
    return row


tokens = st.lists(st.integers(0, VOCAB - 1), max_size=30)
penalty = st.floats(-2, 2) | st.just(0.0)


@st.composite
def edited_rows(
    draw: st.DrawFn,
) -> tuple[SamplingParams, list[int], list[int], list[int]]:
    params = asked(
        max_tokens=40,
        presence_penalty=draw(penalty),
        frequency_penalty=draw(penalty),
        repetition_penalty=draw(st.sampled_from([1.0, 0.5, 1.3, 4.0])),
        logit_bias=draw(st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100))),
        min_tokens=draw(st.integers(0, 40)),
    )
    end_ids = sorted(draw(st.sets(st.integers(0, VOCAB - 1), max_size=3)))
    return params, draw(tokens), draw(tokens), end_ids


@settings(max_examples=80, deadline=None)
@given(rows=st.lists(edited_rows(), min_size=1, max_size=6))
def test_edits_of_any_batch_match_the_oracle(
    rows: list[tuple[SamplingParams, list[int], list[int], list[int]]],
) -> None:
    logits = random_logits(len(rows))
    untouched = logits.clone()
    edits = []
    for params, prompt, output, end_ids in rows:
        edit = LogitEdits.of(params, prompt, end_ids)
        for token_id in output if edit is not None else ():
            edit.add(token_id)  # type: ignore[union-attr]
        edits.append(edit)
    result = edit_logits(logits, edits)
    for index, row in enumerate(rows):
        np.testing.assert_allclose(
            result[index].numpy(), oracle_edit(untouched[index].numpy(), *row), atol=1e-4, rtol=1e-5
        )
    assert torch.equal(logits, untouched)


def test_rows_without_edits_get_their_own_logits_back() -> None:
    logits = random_logits(3)
    past = LogitEdits.of(asked(min_tokens=1), PROMPT, [2])
    assert past is not None
    past.add(5)
    assert edit_logits(logits, [None, past, LogitEdits.of(asked(), PROMPT, [2])]) is logits


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    min_p=st.floats(0.001, 1),
    temperature=st.floats(0.3, 2),
    top_k=st.integers(0, 6),
)
def test_min_p_keeps_what_is_likely_enough_after_the_temperature(
    seed: int, min_p: float, temperature: float, top_k: int
) -> None:
    logits = random_logits(1, seed=seed)
    scaled = logits[0].numpy().astype(np.float64) / temperature
    share = np.exp(scaled - scaled.max())
    allowed = share >= min_p * (1 - 1e-5)
    if top_k:
        allowed &= scaled >= np.sort(scaled)[-top_k]
    options = asked(temperature=temperature, min_p=min_p, top_k=top_k, seed=seed)
    drawn = sample(logits.expand(400, -1), [options] * 400, list(range(400)))
    seen = np.bincount(drawn.numpy(), minlength=VOCAB)
    assert not seen[~allowed].any()
    surely = (share / share[allowed].sum() > 0.1) & (share >= min_p * (1 + 1e-5)) & allowed
    assert seen[surely].all()


def test_logprobs_are_those_of_the_model_before_any_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.logits.MAX_ROW_ELEMENTS", 2 * VOCAB)
    logits = random_logits(6)
    counts = [None, 0, 3, 20, VOCAB + 5, 1]
    taken = torch.tensor([0, 1, 2, 3, 4, 5])
    found = read_logprobs(logits, counts, taken)
    assert sorted(found) == [1, 2, 3, 4, 5]
    for row, told in found.items():
        exact = logits[row].double().log_softmax(-1)
        assert told.logprob == pytest.approx(exact[row].item(), abs=1e-5)
        best = exact.argsort(descending=True)[: counts[row]].tolist()
        assert [token_id for token_id, _ in told.top] == best
        assert [value for _, value in told.top] == pytest.approx(exact[best].tolist(), abs=1e-5)


def drain(engine: LLMEngine) -> dict[str, RequestOutput]:
    finished: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        finished.update((output.request_id, output) for output in engine.step())
    return finished


def generate(engine: LLMEngine, params: SamplingParams) -> RequestOutput:
    engine.add_request("r", PROMPT, params)
    return drain(engine)["r"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_p": 1.1}, "min_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: 100.5}}, "logit_bias"),
        ({"logit_bias": {"1": 1.0}}, "logit_bias"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 13}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
    ],
)
def test_bad_fields_are_named_and_nothing_enters(
    make_engine: EngineFactory, fields: dict[str, object], param: str
) -> None:
    engine = make_engine()
    with pytest.raises(InvalidParams) as caught:
        engine.add_request("r", PROMPT, asked(**fields))
    assert caught.value.param == param
    assert not engine.has_unfinished()


def test_a_bias_decides_what_is_said(make_engine: EngineFactory) -> None:
    output = generate(make_engine(), asked(4, logit_bias={77: 100.0}))
    assert output.token_ids == (77,) * 4


def test_penalties_end_a_repetition(make_engine: EngineFactory) -> None:
    bias = {70: 30.0, 71: 30.0}
    engine = make_engine()
    assert len(set(generate(engine, asked(4, logit_bias=bias)).token_ids)) <= 2
    bent = generate(engine, asked(8, logit_bias={70: 30.0, 71: 30.0}, repetition_penalty=50.0))
    assert Counter(bent.token_ids)[70] == Counter(bent.token_ids)[71] == 1


def test_no_end_comes_before_min_tokens(make_engine: EngineFactory) -> None:
    engine = make_engine()
    eager = {EOS_ID: 100.0, 88: 90.0}
    assert generate(engine, asked(logit_bias=eager)).token_ids == (EOS_ID,)
    late = generate(engine, asked(logit_bias=eager, min_tokens=3))
    assert late.token_ids == (88, 88, 88, EOS_ID)
    assert late.finish_reason is FinishReason.STOP
    by_id = generate(engine, asked(logit_bias=eager, min_tokens=2, stop_token_ids=(88,)))
    assert len(by_id.token_ids) == 3
    assert not {EOS_ID, 88} & set(by_id.token_ids[:2])


def test_stop_strings_before_min_tokens_are_ignored_and_stay_in_the_text(
    make_engine: EngineFactory,
) -> None:
    engine = make_engine()
    letter = engine.tokenizer.encode("a", add_special_tokens=False)[0]
    always = {letter: 100.0}
    soon = generate(engine, asked(logit_bias=always, stop=("a", "aa")))
    assert (soon.text, len(soon.token_ids)) == ("", 1)
    late = generate(engine, asked(logit_bias=always, stop=("a", "aa"), min_tokens=4))
    assert (late.text, len(late.token_ids)) == ("aa", 4)
    assert late.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_preemption_changes_nothing_of_penalised_lines(
    make_engine: EngineFactory, temperature: float
) -> None:
    def run(**overrides: object) -> dict[str, RequestOutput]:
        engine = make_engine(**overrides)
        for index in range(8):
            params = asked(
                20,
                temperature=temperature,
                seed=index,
                presence_penalty=0.9,
                frequency_penalty=0.7,
                repetition_penalty=1.2,
                logit_bias={index: 2.0, EOS_ID: 4.0},
                min_tokens=10,
                min_p=0.02,
                logprobs=3,
            )
            engine.add_request(str(index), [*PROMPT, index, *range(index)], params)
        return drain(engine)

    calm = run()
    for rough in (run(preempt_every=2), run(preempt_every=3, max_num_batched_tokens=5)):
        assert sum(output.metrics.preemptions for output in rough.values()) > 8
        for name, output in rough.items():
            assert output.token_ids == calm[name].token_ids
            assert output.text == calm[name].text
            assert output.logprobs is not None
            assert calm[name].logprobs is not None
            for told, expected in zip(output.logprobs, calm[name].logprobs, strict=True):
                assert told.logprob == pytest.approx(expected.logprob, abs=1e-3)
                assert dict(told.top) == pytest.approx(dict(expected.top), abs=1e-3)


def test_every_output_token_has_its_logprobs_and_greedy_takes_the_best(
    make_engine: EngineFactory,
) -> None:
    engine = make_engine()
    output = generate(engine, asked(6, logprobs=2))
    assert output.logprobs is not None
    for token_id, told in zip(output.token_ids, output.logprobs, strict=True):
        assert len(told.top) == 2
        assert told.top[0] == (token_id, told.logprob)
        assert 0 >= told.top[0][1] >= told.top[1][1]
    assert generate(engine, asked(6)).logprobs is None
    forced = generate(engine, asked(1, logit_bias={400: 100.0}, logprobs=1))
    assert forced.logprobs is not None
    assert forced.logprobs[0].logprob < forced.logprobs[0].top[0][1]


def test_logprobs_equal_those_of_one_forward_through_transformers(
    make_engine: EngineFactory, llama_folder: Path
) -> None:
    fields = {"temperature": 1.3, "seed": 4, "ignore_eos": True, "frequency_penalty": 1.5}
    output = generate(make_engine(max_num_batched_tokens=3), asked(10, logprobs=20, **fields))
    model = AutoModelForCausalLM.from_pretrained(llama_folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([[*PROMPT, *output.token_ids]])).logits[0]
    expected = logits.log_softmax(-1)[len(PROMPT) - 1 :]
    assert output.logprobs is not None
    for row, token_id, told in zip(expected[:-1], output.token_ids, output.logprobs, strict=True):
        assert told.logprob == pytest.approx(row[token_id].item(), abs=1e-3)
        best = row.topk(20)
        assert [value for _, value in told.top] == pytest.approx(best.values.tolist(), abs=1e-3)
