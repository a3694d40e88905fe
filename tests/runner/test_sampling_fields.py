"""Sampling fields on the wire: several choices, log-probabilities, echo, and refusals by name."""

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion
from safetensors.torch import load_file, save_file
from test_line_bodies import COMPLETIONS, HELLO, lease_for, line_of, refusal_of, request_of
from tiny_models import VOCAB_SIZE, save_model
from workshop import CHAT, answers

from runner.config import Settings
from runner.domain.leases import ItemInput
from runner.inference.backend import Backend, Likelihood, LineRefusal, Outcome, TokenLikelihood
from runner.inference.fan_out import OpenLines
from runner.inference.local.backend import LocalBackend
from runner.inference.logprobs import chat_logprobs, text_logprobs
from runner.inference.requests import MAX_CHOICES
from runner.inference.stub import StubBackend
from runner.worker.lines import finished_outcome

BAD_ID = 300
ONCE = [79, 110, 99, 101] * 10


def answer_to(body: dict[str, object], endpoint: str = CHAT) -> dict[str, Any]:
    """The body of the stub's answer."""
    (item,) = answers(lease_for(endpoint), [ItemInput(0, "a", line_of(body, endpoint))])
    assert not item.failed
    answer: dict[str, Any] = json.loads(item.line)["response"]["body"]
    return answer


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"min_p": 1.5}, "min_p", "invalid_value"),
        ({"min_tokens": -1}, "min_tokens", "invalid_value"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "invalid_value"),
        ({"presence_penalty": 2.1}, "presence_penalty", "invalid_value"),
        ({"frequency_penalty": -2.1}, "frequency_penalty", "invalid_value"),
        ({"frequency_penalty": "much"}, "frequency_penalty", "invalid_type"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-5": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"the": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "invalid_value"),
        ({"logit_bias": [1]}, "logit_bias", "invalid_type"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": MAX_CHOICES + 1}, "n", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": 3}, "logprobs", "invalid_type"),
    ],
)
def test_a_field_out_of_its_range_is_refused_by_name(
    changes: dict[str, object], param: str, code: str
) -> None:
    refusal = refusal_of({"messages": HELLO, **changes})
    assert (refusal.param, refusal.code) == (param, code)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ["one", 2]}, "prompt"),
        ({"prompt": [[1], [True]]}, "prompt"),
        ({"prompt": [[1], 2]}, "prompt"),
        ({"prompt": ["x"] * (MAX_CHOICES // 2 + 1), "n": 2}, "prompt"),
        ({"prompt": "x", "n": 2, "best_of": 3}, "best_of"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "logprobs": 1, "echo": True}, "echo"),
        ({"prompt": "x", "top_logprobs": 1}, "top_logprobs"),
        ({"prompt": "x", "min_tokens": 17}, "min_tokens"),
    ],
)
def test_a_completion_that_asks_for_too_much_is_refused_by_name(
    changes: dict[str, object], param: str
) -> None:
    assert refusal_of(changes, COMPLETIONS).param == param


def test_every_field_reaches_the_request() -> None:
    request = request_of(
        {
            "messages": HELLO,
            "n": 3,
            "min_p": 0.1,
            "min_tokens": 2,
            "presence_penalty": 1,
            "frequency_penalty": -1.5,
            "repetition_penalty": 1.2,
            "logit_bias": {"5": -100, "17": 2.5},
            "logprobs": True,
            "top_logprobs": 4,
        }
    )
    sampling = request.sampling
    assert (request.n, sampling.min_p, sampling.min_tokens, sampling.logprobs) == (3, 0.1, 2, 4)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1.5)
    assert (sampling.repetition_penalty, sampling.logit_bias) == (1.2, {5: -100, 17: 2.5})


def test_choices_are_numbered_and_the_prompt_counts_once() -> None:
    one, three = answer_to({"messages": HELLO}), answer_to({"messages": HELLO, "n": 3})
    texts = [choice["message"]["content"] for choice in three["choices"]]
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts[0] == one["choices"][0]["message"]["content"]
    usage = three["usage"]
    assert usage["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert usage["completion_tokens"] == sum(len(text.split()) for text in texts)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_choices_of_several_prompts_stand_in_the_order_of_the_prompts() -> None:
    prompts = ["a b c", "d", "e f"]
    body = {"prompt": prompts, "n": 2, "best_of": 2, "echo": True}
    answer = answer_to(body, COMPLETIONS)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    for choice in answer["choices"]:
        assert choice["text"].startswith(prompts[choice["index"] // 2])
    assert len({choice["text"] for choice in answer["choices"]}) == 6
    assert answer["usage"]["prompt_tokens"] == 6
    as_ids = answer_to({"prompt": [[1, 2], [3]]}, COMPLETIONS)
    assert (len(as_ids["choices"]), as_ids["usage"]["prompt_tokens"]) == (2, 3)


def test_logprobs_of_a_chat_have_the_shape_of_the_contract() -> None:
    body = {"messages": HELLO, "logprobs": True, "top_logprobs": 2}
    answer = answer_to(body)
    ChatCompletion.model_validate(answer, strict=True)
    (choice,) = answer["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"]
    for entry in content:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert [set(top) for top in entry["top_logprobs"]] == [{"token", "logprob", "bytes"}] * 2
    (bare,) = answer_to({"messages": HELLO, "logprobs": True})["choices"]
    assert all(entry["top_logprobs"] == [] for entry in bare["logprobs"]["content"])
    assert answer_to({"messages": HELLO})["choices"][0]["logprobs"] is None


def test_logprobs_of_a_completion_have_the_shape_of_the_contract() -> None:
    answer = answer_to({"prompt": "Once", "logprobs": 3}, COMPLETIONS)
    Completion.model_validate(answer, strict=True)
    (choice,) = answer["choices"]
    told = choice["logprobs"]
    assert set(told) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    for token, value, top in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert (len(top), top[token]) == (3, value)


def test_parts_of_a_character_are_told_as_bytes_and_the_impossible_as_a_number() -> None:
    snowman = "\u2603".encode()
    parts = [b"a", snowman[:2], snowman[2:], b"b"]
    tokens = [TokenLikelihood(Likelihood(part, float("-inf")), ()) for part in parts]
    told: dict[str, Any] = text_logprobs(tokens)
    assert told["tokens"] == ["a", "bytes:\\xe2\\x98", "bytes:\\x83", "b"]
    assert told["text_offset"] == [0, 1, 1, 2]
    assert told["token_logprobs"] == [-9999.0] * 4
    content: Any = chat_logprobs(tokens)["content"]
    assert content[1]["bytes"] == list(snowman[:2])


@given(seed=st.integers(-(2**63), 2**64), n=st.integers(1, MAX_CHOICES))
def test_no_two_choices_have_the_same_seed_and_the_first_has_the_lines(seed: int, n: int) -> None:
    body = {"messages": HELLO, "n": n, "seed": seed}
    task = StubBackend().prepare(lease_for(), ItemInput(0, "a", line_of(body)))
    choices = OpenLines().add(task)
    assert choices[0].seed == seed
    assert len({choice.seed % 2**64 for choice in choices}) == n
    assert len({choice.key for choice in choices}) == n


def submit(backend: Backend, body: dict[str, object], idx: int = 0, endpoint: str = CHAT) -> str:
    task = backend.prepare(lease_for(endpoint), ItemInput(idx, "a", line_of(body, endpoint)))
    backend.submit(task)
    return task.key


def run(backend: Backend, body: dict[str, object], endpoint: str = COMPLETIONS) -> Outcome:
    """The end of one line that runs alone."""
    submit(backend, body, endpoint=endpoint)
    outcomes: list[Outcome] = []
    while backend.unfinished:
        outcomes += backend.step()
    (outcome,) = outcomes
    return outcome


def rendered(outcome: Outcome) -> dict[str, Any]:
    item = finished_outcome(outcome)
    assert not item.failed
    body: dict[str, Any] = json.loads(item.line)["response"]["body"]
    return body


def test_an_abort_drops_every_choice_and_tells_what_all_of_them_cost() -> None:
    backend = StubBackend(rows=3, step_ms=2)
    asked: dict[str, object] = {"messages": HELLO, "n": 5, "min_tokens": 9, "max_tokens": 9}
    gone, kept = submit(backend, asked), submit(backend, {"messages": HELLO}, idx=1)
    assert backend.step() == []
    assert backend.abort([gone, "unknown"]) >= 2_000
    assert backend.unfinished == 1
    ended: list[Outcome] = []
    while backend.unfinished:
        ended += backend.step()
    assert [outcome.task.key for outcome in ended] == [kept]


def load_backend(folder: Path) -> LocalBackend:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return LocalBackend(
            folder, Settings(dtype="float32", memory_utilization=0.01, max_num_batched_tokens=64)
        )
    finally:
        torch.set_num_threads(threads)


def test_a_backend_that_is_closed_leaves_nothing_of_its_engine(tmp_path: Path) -> None:
    backend = load_backend(save_model(tmp_path))
    engine = weakref.ref(backend._engine)
    backend.close()
    assert engine() is None


@pytest.fixture(scope="module")
def resident(tmp_path_factory: pytest.TempPathFactory) -> LocalBackend:
    """A tiny random model in the engine."""
    return load_backend(save_model(tmp_path_factory.mktemp("llama")))


@pytest.fixture
def local(resident: LocalBackend) -> Iterator[LocalBackend]:
    yield resident
    assert resident.unfinished == 0
    assert resident.stats()["kv_blocks_used"] == 0


def test_choices_of_the_engine_differ_and_share_their_prompt(local: LocalBackend) -> None:
    prompt = list(range(70, 110))  # no other test's, so that it is not cached yet
    asked = {"prompt": prompt, "seed": 7, "max_tokens": 12, "ignore_eos": True, "temperature": 1.5}
    before = local.stats()
    outcome = run(local, {**asked, "n": 4})
    after = local.stats()
    several = rendered(outcome)
    texts = [choice["text"] for choice in several["choices"]]
    assert len(set(texts)) == 4
    shared_block = 32
    assert after["prefix_hit_tokens"] - before["prefix_hit_tokens"] == 3 * shared_block
    assert several["usage"]["prompt_tokens"] == len(prompt)
    assert several["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert several["usage"]["completion_tokens"] == outcome.metrics.output_tokens == 48
    metrics = outcome.metrics
    assert metrics.device_us == after["busy_us"] - before["busy_us"]
    assert metrics.queue_us + metrics.prefill_us + metrics.decode_us == metrics.total_us
    again = rendered(run(local, asked))
    assert again["choices"][0]["text"] == texts[0]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == shared_block


def test_equal_greedy_lines_and_choices_are_computed_once(local: LocalBackend) -> None:
    body = {"prompt": "a tin", "max_tokens": 9, "ignore_eos": True, "temperature": 0, "n": 2}
    before = local.stats()
    keys = [submit(local, {**body, "seed": idx}, idx, COMPLETIONS) for idx in range(3)]
    assert local.unfinished == 1  # copies take no row
    ended: dict[str, Outcome] = {}
    while local.unfinished:
        ended |= {outcome.task.key: outcome for outcome in local.step()}
    after = local.stats()
    assert after["copies"] - before["copies"] == 5
    assert after["output_tokens"] - before["output_tokens"] == 9
    texts = {
        choice["text"] for outcome in ended.values() for choice in rendered(outcome)["choices"]
    }
    assert len(texts) == 1
    first, *others = (ended[key].metrics for key in keys)
    assert first.device_us == after["busy_us"] - before["busy_us"]
    assert [metrics.device_us for metrics in others] == [0, 0]
    assert {metrics.output_tokens for metrics in (first, *others)} == {18}


def test_with_nothing_to_follow_the_longest_answers_go_first(local: LocalBackend) -> None:
    asked = {"ignore_eos": True, "temperature": 0}
    local.expect_more(False)
    for idx, limit in enumerate((1, 3)):
        body = {"prompt": [120 + idx] * 60, "max_tokens": limit, **asked}
        submit(local, body, idx, COMPLETIONS)
    assert local.step() == []  # of 64 tokens; the short answer would have ended
    ended = [outcome.task.idx for _ in range(3) for outcome in local.step()]
    assert sorted(ended) == [0, 1]
    local.expect_more(True)


def test_prompts_of_one_line_answer_as_they_would_alone(local: LocalBackend) -> None:
    texts = ["Once upon a time", "the land", "tin"]
    asked = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    together = rendered(run(local, {"prompt": texts, "echo": True, **asked}))
    alone = [rendered(run(local, {"prompt": text, **asked})) for text in texts]
    assert [choice["text"] for choice in together["choices"]] == [
        text + answer["choices"][0]["text"] for text, answer in zip(texts, alone, strict=True)
    ]
    assert together["usage"]["prompt_tokens"] == sum(a["usage"]["prompt_tokens"] for a in alone)


def test_the_engines_logprobs_belong_to_the_tokens_of_the_text(local: LocalBackend) -> None:
    asked = {"prompt": ONCE, "max_tokens": 16, "temperature": 0, "logprobs": 2}
    (choice,) = rendered(run(local, {**asked, "ignore_eos": True}))["choices"]
    told = choice["logprobs"]
    assert len(told["tokens"]) == 16
    for token, value, top in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert value == top[token] == max(top.values()) <= 0
    letter = local.prepare(
        lease_for(COMPLETIONS), ItemInput(0, "a", line_of({"prompt": "\u2603"}, COMPLETIONS))
    ).prompts[0]
    bias = {str(token_id): 100 for token_id in letter[:1]}
    (forced,) = rendered(run(local, {**asked, "max_tokens": 1, "logit_bias": bias}))["choices"]
    assert forced["logprobs"]["tokens"] == ["bytes:\\xe2"]
    assert len(forced["logprobs"]["top_logprobs"][0]) == 3


def test_a_broken_choice_fails_its_line_and_leaves_nothing_running(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][BAD_ID] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    local = load_backend(folder)
    calm = {"ignore_eos": True, "temperature": 0, "logit_bias": {str(BAD_ID): -100}}
    other = submit(local, {"prompt": "tin", "max_tokens": 3, **calm}, 1, COMPLETIONS)
    body = {"prompt": [[65, 66], [65, BAD_ID], [67]], "n": 2, "max_tokens": 50, **calm}
    broken = submit(local, body, endpoint=COMPLETIONS)
    ended = {outcome.task.key: outcome for _ in range(4) for outcome in local.step()}
    assert (local.unfinished, local.stats()["kv_blocks_used"]) == (0, 0)
    refusal = ended[broken].answer
    assert isinstance(refusal, LineRefusal)
    assert (refusal.status, refusal.code) == (500, "invalid_logits")
    assert not isinstance(ended[other].answer, LineRefusal)


def test_a_line_enters_the_engine_whole_or_not_at_all(local: LocalBackend) -> None:
    for body, param in (
        ({"prompt": [[1], [2] * 10_000]}, None),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": [[1], [2]], "logit_bias": {str(VOCAB_SIZE): 1}}, "logit_bias"),
    ):
        with pytest.raises(LineRefusal) as caught:
            submit(local, body, endpoint=COMPLETIONS)  # type: ignore[arg-type]
        assert (caught.value.status, caught.value.param) == (400, param)
        assert local.unfinished == 0
        assert local.step() == []


def test_an_abort_frees_the_blocks_of_every_choice(local: LocalBackend) -> None:
    body: dict[str, object] = {"prompt": [ONCE, ONCE[1:]], "n": 3, "ignore_eos": True}
    key = submit(local, {**body, "max_tokens": 40}, endpoint=COMPLETIONS)
    for _ in range(5):
        assert local.step() == []
    assert local.unfinished == 6
    assert local.abort([key]) > 0
