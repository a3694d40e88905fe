"""Lines of /v1/responses: what is honoured, what is refused by name, and the shape of answers."""

import json
from typing import Any

import pytest
from openai.types.responses import Response
from test_line_bodies import refusal_of, request_of
from test_sampling_fields import answer_to
from workshop import MODEL, Workshop

from runner.domain.truncation import Truncation
from runner.inference.responses import chat_format

RESPONSES = "/v1/responses"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}}, "text.format"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"text": {"else": 1}}, "text.else"),
        ({"truncation": "some"}, "truncation"),
        ({"truncation": "auto", "truncate_prompt": "error"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
    ],
)
def test_a_line_that_cannot_be_honoured_is_refused_by_name(
    changes: dict[str, object], param: str
) -> None:
    refusal = refusal_of({"input": "Hello", **changes}, RESPONSES)
    assert refusal.param is not None
    assert refusal.param.removesuffix("[...]") == param
    assert refusal.message.endswith(".")
    assert "response_format" not in refusal.message


def test_what_a_line_asks_for_is_understood() -> None:
    request = request_of(
        {
            "input": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "input_text", "text": "He"}] * 2},
                {
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "Hm?", "annotations": []}],
                },
                {"role": "user", "content": "Hey"},
            ],
            "instructions": "Be kind.",
            "max_output_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.25,
            "text": {"format": {"type": "text"}},
            "truncation": "auto",
            "metadata": {"any": "thing"},
            "store": True,
            "user": "someone",
            "tools": [],
            "tool_choice": "auto",
            "background": False,
            "reasoning": {"effort": None},
        },
        RESPONSES,
    )
    assert request.prompts[0].messages == (
        {"role": "system", "content": "Be kind."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "HeHe"},
        {"role": "assistant", "content": "Hm?"},
        {"role": "user", "content": "Hey"},
    )
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (9, 0.5, 0.25)
    assert request.truncation.policy is Truncation.KEEP_SYSTEM_AND_LAST


def test_a_text_is_a_users_message() -> None:
    request = request_of({"input": "Hello"}, RESPONSES)
    assert request.prompts[0].messages == ({"role": "user", "content": "Hello"},)
    assert request.truncation.policy is Truncation.ERROR
    assert request.sampling.max_tokens is None


def test_a_format_is_carried_over_to_the_form_of_a_chat() -> None:
    assert chat_format(None) is None
    assert chat_format({"format": {"type": "json_object"}}) == {"type": "json_object"}
    told = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    assert chat_format({"format": told, "verbosity": "medium"}) == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
    }


def whole_answer(**changes: object) -> dict[str, Any]:
    return answer_to({"input": "Tell me a tale.", **changes}, RESPONSES)


def test_the_answer_is_a_response_of_the_official_client() -> None:
    answer = whole_answer(
        instructions="Be kind.", metadata={"a": "b"}, user="u", temperature=0.5, truncation="auto"
    )
    response = Response.model_validate(answer)
    assert response.id.startswith("resp_batch_req_")
    assert (response.object, response.status, response.error) == ("response", "completed", None)
    assert response.incomplete_details is None
    assert response.output[0].type == "message"
    assert response.output[0].status == "completed"
    assert response.output_text == answer["output"][0]["content"][0]["text"] != ""
    assert (response.instructions, response.metadata) == ("Be kind.", {"a": "b"})
    assert (response.temperature, response.top_p, response.user) == (0.5, 1.0, "u")
    assert (response.truncation, response.tools, response.tool_choice) == ("auto", [], "auto")
    assert response.usage is not None
    assert response.usage.input_tokens == 6
    assert response.usage.output_tokens == len(response.output_text.split())
    assert response.usage.total_tokens == 6 + response.usage.output_tokens
    assert response.usage.input_tokens_details.cached_tokens == 0
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    assert set(answer) <= set(Response.model_fields) | {"store"}


def test_an_answer_that_ran_out_of_tokens_is_incomplete() -> None:
    response = Response.model_validate(whole_answer(max_output_tokens=1))
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"
    assert response.max_output_tokens == 1
    assert response.usage is not None
    assert response.usage.output_tokens == 1


def test_logprobs_are_told_where_include_asks_for_them() -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    answer = whole_answer(**asked)
    Response.model_validate(answer)
    told = answer["output"][0]["content"][0]["logprobs"]
    assert len(told) == answer["usage"]["output_tokens"]
    assert {len(entry["top_logprobs"]) for entry in told} == {2}
    assert whole_answer()["output"][0]["content"][0]["logprobs"] == []


def test_a_response_says_what_a_chat_of_the_same_words_says() -> None:
    told = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "A tale."}]
    chat = answer_to({"messages": told})
    answer = whole_answer(instructions="Be kind.", input="A tale.")
    text = answer["output"][0]["content"][0]["text"]
    assert text == chat["choices"][0]["message"]["content"]


def test_a_job_of_responses_runs_to_its_end(workshop: Workshop) -> None:
    def line(custom_id: str, **body: object) -> bytes:
        fields = {"model": MODEL, **body}
        whole = {"custom_id": custom_id, "method": "POST", "url": RESPONSES, "body": fields}
        return json.dumps(whole).encode()

    lines = [
        line("a", input="Tell me."),
        line("b", input="one two three", truncate_prompt_tokens=2),
        line("c", input="x", background=True),
        line("d", input="x", stream=True),
    ]
    job_id = workshop.make_job(lines, endpoint=RESPONSES, on_invalid="skip")
    workshop.drain()
    job = workshop.job(job_id)
    assert (job.totals.succeeded, job.totals.failed) == (2, 2)
    bodies = {
        entry["custom_id"]: entry["response"]["body"] for entry in workshop.parsed(job_id, "output")
    }
    assert Response.model_validate(bodies["b"]).usage is not None
    assert bodies["b"]["truncated_prompt_tokens"] == 1
    assert dict(workshop.errors(job_id)) == {
        "c": "unsupported_value",
        "d": "streaming_unsupported",
    }
