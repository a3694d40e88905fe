"""A prompt that is too long: refused, or cut by the policy that the line or its job names."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_line_bodies import COMPLETIONS, HELLO, lease_for, line_of, refusal_of, request_of
from test_sampling_fields import answer_to, load_backend, rendered, run
from tiny_models import EOS_ID, byte_tokenizer, save_model, save_tokenizer
from tokenizers.processors import TemplateProcessing
from workshop import CHAT, MODEL, Workshop, make_item

from engine.tokenizer import Tokenizer
from runner.domain.defaults import Defaults
from runner.domain.errors import InvalidRequest
from runner.domain.leases import ItemInput
from runner.domain.truncation import Truncation
from runner.inference.backend import LineRefusal
from runner.inference.bodies import BadBody
from runner.inference.prompts import TokenisedLine, tokenise
from runner.inference.requests import parse_request
from runner.inference.truncation import TooLong, cut_chat
from runner.services import reports

TEMPLATE = (
    "{% for message in messages %}<end>{{ message.role }}: {{ message.content | trim }}\n"
    "{% endfor %}<end>assistant: "
)
FIRST, LAST = Truncation.KEEP_FIRST, Truncation.KEEP_LAST
SYSTEM = Truncation.KEEP_SYSTEM_AND_LAST
CONTEXT = 200


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


TALK = [
    said("system", "Be brief."),
    said("user", "One? " * 8),
    said("assistant", "First."),
    said("user", "Two? " * 8),
    said("assistant", "Second."),
    said("user", "Three? " * 8),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, TEMPLATE)
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def framing_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One that puts a token before and one behind every text."""
    folder = tmp_path_factory.mktemp("framing")
    save_tokenizer(folder)
    backend = byte_tokenizer()
    backend.post_processor = TemplateProcessing(
        single="<end> $A <end>", special_tokens=[("<end>", EOS_ID)]
    )
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


Cut = Callable[..., TokenisedLine]


@pytest.fixture
def cut(tokenizer: Tokenizer) -> Cut:
    def cut(body: dict[str, object], endpoint: str = CHAT, context: int = CONTEXT) -> TokenisedLine:
        return tokenise(request_of(body, endpoint), tokenizer, context)

    return cut


def test_without_a_policy_nothing_is_cut(cut: Cut) -> None:
    for changes in ({}, {"truncate_prompt": "error"}):
        line = cut({"messages": TALK, **changes}, context=20)
        assert len(line.token_ids[0]) > 20
        assert line.truncated_tokens == 0


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (LAST, [3, 4, 5]),
        (SYSTEM, [0, 3, 4, 5]),
        (FIRST, [0, 1, 2, 3, 4]),
    ],
)
def test_a_chat_loses_whole_turns_first(
    cut: Cut, tokenizer: Tokenizer, policy: Truncation, kept: list[int]
) -> None:
    expected = tokenizer.render_chat([TALK[number] for number in kept])
    whole = tokenizer.render_chat(TALK)
    for spare in (0, 5):
        limit = len(expected) + spare
        body = {"messages": TALK, "truncate_prompt": policy, "truncate_prompt_tokens": limit}
        line = cut(body, context=10_000)
        assert line.token_ids == (tuple(expected),)
        assert line.truncated_tokens == len(whole) - len(expected)
        assert line.request.prompts[0].token_ids == tuple(expected)


@pytest.mark.parametrize(
    ("policy", "kept", "cut_place"),
    [(LAST, [5], 0), (SYSTEM, [0, 5], 1), (FIRST, [0, 1, 2], 1)],
)
def test_the_one_turn_that_is_left_is_cut_in_its_text_between_tokens(
    cut: Cut, tokenizer: Tokenizer, policy: Truncation, kept: list[int], cut_place: int
) -> None:
    messages = [dict(TALK[number]) for number in kept]
    if policy is FIRST:
        messages[-1]["content"] = "F"  # it is cut to its last token before the user's is touched
    text = messages[cut_place]["content"].strip()
    rest = text[:9] if policy is FIRST else text[-9:]
    expected = [*messages]
    expected[cut_place] = said("user", rest)
    ids = tokenizer.render_chat(expected)
    body = {"messages": TALK, "truncate_prompt": policy, "truncate_prompt_tokens": len(ids)}
    line = cut(body, context=10_000)
    assert line.token_ids == (tuple(ids),)
    assert line.token_ids[0].count(EOS_ID) == len(kept) + 1


@given(
    contents=st.lists(st.text(max_size=60), min_size=1, max_size=7),
    has_system=st.booleans(),
    policy=st.sampled_from([FIRST, LAST, SYSTEM]),
    limit=st.integers(1, 260),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_cut_fits_and_its_frame_is_whole(
    tokenizer: Tokenizer, contents: list[str], has_system: bool, policy: Truncation, limit: int
) -> None:
    roles = ("user", "assistant") * len(contents)
    messages = [said(role, text) for role, text in zip(roles, contents, strict=False)]
    if has_system:
        messages.insert(0, said("system", "Be brief."))
    whole = tokenizer.render_chat(messages)
    ids = whole_or_cut(tokenizer, messages, policy, limit)
    if ids is None:
        assert limit < 120  # less than a system message and one turn's frame, with a token each
        return
    assert len(ids) <= limit
    assert (ids == whole) == (len(whole) <= limit)
    tail = tokenizer.encode("assistant: ", add_special_tokens=False)
    assert ids[-len(tail) - 1 :] == [EOS_ID, *tail]
    if has_system and policy is not LAST:
        head = tokenizer.encode("<end>system: Be brief.\n", add_special_tokens=False)
        assert ids[: len(head)] == head


def whole_or_cut(
    tokenizer: Tokenizer, messages: list[dict[str, str]], policy: Truncation, limit: int
) -> list[int] | None:
    try:
        return cut_chat(messages, limit, policy, tokenizer)
    except TooLong:
        return None


def test_letters_of_several_tokens_are_never_halved(cut: Cut, tokenizer: Tokenizer) -> None:
    messages = [said("user", "\U0001f388" * 20)]
    frame = len(tokenizer.render_chat([said("user", "")]))
    for limit in range(frame + 4, frame + 20):
        body = {"messages": messages, "truncate_prompt": LAST, "truncate_prompt_tokens": limit}
        (ids,) = cut(body, context=10_000).token_ids
        assert "\ufffd" not in tokenizer.decode(ids)
        assert limit - 4 < len(ids) <= limit


@pytest.mark.parametrize("policy", [LAST, SYSTEM, FIRST])
def test_a_frame_that_does_not_fit_is_refused(cut: Cut, policy: Truncation) -> None:
    with pytest.raises(BadBody) as caught:
        cut({"messages": TALK, "truncate_prompt": policy, "truncate_prompt_tokens": 9})
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "truncate_prompt")


@pytest.mark.parametrize(
    ("policy", "kept"),
    [(FIRST, slice(None, 8)), (LAST, slice(-8, None)), (SYSTEM, slice(-8, None))],
)
def test_token_ids_lose_their_end_or_their_beginning(
    cut: Cut, policy: Truncation, kept: slice
) -> None:
    prompts = [list(range(20)), [7, 8, 9]]
    body = {"prompt": prompts, "truncate_prompt": policy, "truncate_prompt_tokens": 8}
    line = cut(body, COMPLETIONS)
    assert line.token_ids == (tuple(prompts[0][kept]), (7, 8, 9))
    assert line.truncated_tokens == 12


@pytest.mark.parametrize(("policy", "kept"), [(FIRST, "ABCDEF"), (LAST, "UVWXYZ")])
def test_a_text_keeps_what_the_tokenizer_puts_around_it(
    framing_tokenizer: Tokenizer, policy: Truncation, kept: str
) -> None:
    text = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    body = {"prompt": text, "truncate_prompt": policy, "truncate_prompt_tokens": 8}
    line = tokenise(request_of(body, COMPLETIONS), framing_tokenizer, CONTEXT)
    inner = framing_tokenizer.encode(kept, add_special_tokens=False)
    assert line.token_ids == ((EOS_ID, *inner, EOS_ID),)
    assert line.truncated_tokens == 20
    body["truncate_prompt_tokens"] = 2
    with pytest.raises(BadBody) as caught:
        tokenise(request_of(body, COMPLETIONS), framing_tokenizer, CONTEXT)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("changes", "endpoint", "length"),
    [
        ({"max_tokens": 50}, COMPLETIONS, CONTEXT - 50),
        ({"max_tokens": CONTEXT}, COMPLETIONS, CONTEXT - 1),
        ({"truncate_prompt_tokens": -1, "max_tokens": 1}, COMPLETIONS, CONTEXT - 1),
        ({"truncate_prompt_tokens": 30, "max_tokens": 50}, COMPLETIONS, 30),
        ({}, "/v1/embeddings", CONTEXT),
        ({"truncate_prompt_tokens": CONTEXT}, "/v1/embeddings", CONTEXT),
    ],
)
def test_left_to_itself_a_prompt_leaves_room_for_the_answer(
    cut: Cut, changes: dict[str, object], endpoint: str, length: int
) -> None:
    field = "input" if endpoint == "/v1/embeddings" else "prompt"
    body = {field: [5] * 1000, "truncate_prompt": LAST, **changes}
    line = cut(body, endpoint)
    assert [len(ids) for ids in line.token_ids] == [length]
    assert line.truncated_tokens == 1000 - length


def test_a_number_alone_keeps_the_last_tokens(cut: Cut) -> None:
    line = cut({"prompt": [1, 2, 3], "truncate_prompt_tokens": 2}, COMPLETIONS)
    assert line.token_ids == ((2, 3),)


def test_more_than_the_context_holds_is_refused_by_name(cut: Cut) -> None:
    for endpoint, most in ((COMPLETIONS, CONTEXT - 1), ("/v1/embeddings", CONTEXT)):
        body = {"prompt": [1], "input": [1], "truncate_prompt_tokens": most + 1}
        del body["input" if endpoint == COMPLETIONS else "prompt"]
        with pytest.raises(BadBody, match=f"{most}") as caught:
            cut(body, endpoint)
        assert caught.value.param == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"truncate_prompt": "some"}, "truncate_prompt"),
        ({"truncate_prompt": 7}, "truncate_prompt"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": "9"}, "truncate_prompt_tokens"),
        ({"truncate_prompt": "error", "truncate_prompt_tokens": 9}, "truncate_prompt_tokens"),
    ],
)
def test_a_truncation_that_makes_no_sense_is_refused_by_name(
    changes: dict[str, object], param: str
) -> None:
    assert refusal_of({"messages": HELLO, **changes}).param == param


def test_the_engine_answers_what_is_left_as_if_it_were_the_prompt(tmp_path: Path) -> None:
    local = load_backend(save_model(tmp_path))
    context = 256
    asked = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "echo": True}
    ids = [number % 400 for number in range(1000)]
    long = rendered(run(local, {"prompt": ids, "truncate_prompt": "keep_last", **asked}))
    short = rendered(run(local, {"prompt": ids[-(context - 6) :], **asked}))
    assert long["choices"] == short["choices"]
    assert long["usage"]["prompt_tokens"] == context - 6
    assert long["truncated_prompt_tokens"] == 1000 - context + 6
    first = {"prompt": "ABCDEFGH", "truncate_prompt": "keep_first", "truncate_prompt_tokens": 3}
    (choice,) = rendered(run(local, {**first, **asked}))["choices"]
    assert choice["text"].startswith("ABC")
    assert not choice["text"].startswith("ABCD")
    task = local.prepare(
        lease_for(COMPLETIONS), ItemInput(0, "a", line_of({"prompt": ids}, COMPLETIONS))
    )
    with pytest.raises(LineRefusal) as caught:
        local.submit(task)
    assert caught.value.code == "context_length_exceeded"
    assert "truncate_prompt" in caught.value.message


def test_the_answer_tells_how_much_was_cut() -> None:
    body: dict[str, object] = {"prompt": "a b c d", "truncate_prompt_tokens": 3}
    assert answer_to(body, COMPLETIONS)["truncated_prompt_tokens"] == 1
    body["truncate_prompt_tokens"] = 4
    assert "truncated_prompt_tokens" not in answer_to(body, COMPLETIONS)


def test_a_jobs_policy_holds_for_its_lines_and_a_line_may_have_its_own(
    workshop: Workshop,
) -> None:
    block = json.dumps({"truncate_prompt": "keep_last", "truncate_prompt_tokens": 3}).encode()
    lines = [
        make_item("short", "one two"),
        make_item("long", "one two three four five"),
        make_item("own", "one two three four five", truncate_prompt_tokens=4),
    ]
    job_id = workshop.make_job(lines, defaults=block)
    workshop.drain()
    assert workshop.job(job_id).totals.succeeded == 3
    told = {
        line["custom_id"]: line["response"]["body"].get("truncated_prompt_tokens")
        for line in workshop.parsed(job_id, "output")
    }
    assert told == {"short": None, "long": 2, "own": 1}
    usage = workshop.usage(job_id)
    assert [usage[idx].truncated_tokens for idx in range(3)] == [0, 2, 1]
    assert [usage[idx].prompt_tokens for idx in range(3)] == [2, 3, 4]
    with workshop.sessions() as session:
        report = reports.job_report(session, workshop.caller.project_id, job_id)
    assert (report.account.truncated_lines, report.account.truncated_tokens) == (2, 3)


def test_a_policy_that_no_line_could_follow_is_refused_at_create(workshop: Workshop) -> None:
    with pytest.raises(InvalidRequest) as caught:
        workshop.make_job(1, defaults=b'{"truncate_prompt": "half"}')
    assert caught.value.param == "defaults.truncate_prompt"


def test_the_defaults_lie_under_a_line_of_any_endpoint() -> None:
    lease: Any = lease_for(COMPLETIONS)
    object.__setattr__(lease, "defaults", Defaults(b'{"truncate_prompt": "keep_first"}'))
    request = parse_request(line_of({"model": MODEL, "prompt": "x"}, COMPLETIONS), lease, 0)
    assert request.truncation.policy is FIRST


def test_token_starts_point_into_the_text_whatever_its_letters(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    text = "the \u00e9\U0001f388 land<end>in"
    starts = tokenizer.token_starts(text)
    assert len(starts) == len(tokenizer.encode(text, add_special_tokens=False))
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert text[starts[-1] :] == "in"
