"""How large lines are at a glance."""

import json

import pytest
from workshop import CHAT, make_item

from runner.domain.defaults import Defaults
from runner.domain.lines import parse_line
from runner.domain.outlines import FRAME_TOKENS, Outline, Sketch


def outline_of(endpoint: str, defaults: Defaults | None = None, **body: object) -> Outline:
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": "m", **body}}
    return parse_line(json.dumps(line).encode(), endpoint, 10_000, defaults or Defaults()).outline


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_chat_is_bounded_by_either_name_times_its_choices(name: str) -> None:
    assert outline_of(CHAT, **{name: 7}, n=3).output == 21


def test_a_response_is_bounded_by_its_own_name() -> None:
    assert outline_of("/v1/responses", input="x", max_output_tokens=9).output == 9


def test_a_chat_that_asks_for_nothing_has_no_bound() -> None:
    found = outline_of(CHAT, messages=[], n=2)
    assert (found.output, found.choices) == (None, 2)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("one", 1), (["one", "two"], 2), ([1, 2, 3], 1), ([[1], [2], [3]], 3), ([], 1)],
)
def test_a_completion_has_sixteen_tokens_for_each_of_its_prompts(
    prompt: object, prompts: int
) -> None:
    assert outline_of("/v1/completions", prompt=prompt).output == 16 * prompts


def test_an_embedding_has_no_output() -> None:
    assert outline_of("/v1/embeddings", input="x").output == 0


@pytest.mark.parametrize("odd", ["many", -1, True, 1.5, None, {"a": 1}, 2**62])
def test_an_odd_bound_is_for_others_to_refuse(odd: object) -> None:
    assert parse_line(make_item("a", max_tokens=odd), CHAT, 10_000).model


def test_tools_and_a_shared_beginning_count_as_prompt() -> None:
    plain = outline_of(CHAT, messages=[]).prompt_bytes
    tools = outline_of(CHAT, messages=[], tools=[{"type": "function"}]).prompt_bytes
    shared = Defaults(json.dumps({"messages": [{"role": "system", "content": "x" * 99}]}).encode())
    assert tools > plain + 10
    assert outline_of(CHAT, shared, messages=[]).prompt_bytes > plain + 99


def test_a_sketch_of_a_part_is_scaled_to_the_whole() -> None:
    sketch = Sketch()
    sketch.add(Outline(40, 10))
    sketch.add(Outline(44, None, choices=2))
    volume = sketch.scaled(100, 250).volume(context=1000)
    assert (volume.lines, volume.bounded_output, volume.unbounded_output) == (5, 25, 5000)
    assert volume.input_tokens == 210 // 4
    assert volume.input_most == 210 + 5 * FRAME_TOKENS
    assert not volume.is_exact
