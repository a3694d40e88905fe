"""A model's answer as the JSON body of the wire contract."""

from collections.abc import Sequence

import msgspec

from runner.domain.ids import call_id, item_id
from runner.domain.leases import LineMetrics
from runner.inference.backend import Completion, Task
from runner.inference.embedding_answers import embedding_answer
from runner.inference.logprobs import chat_logprobs, text_logprobs
from runner.inference.requests import CHAT, EMBEDDINGS, RESPONSES
from runner.inference.response_answers import response_answer

_encoder = msgspec.json.Encoder()


def answer_body(task: Task, completions: Sequence[Completion], metrics: LineMetrics) -> bytes:
    """The body of a 200 answer. It depends on the line and the job only, not on when it ran.

    Of a prompt that was shortened it tells, beyond the contract, by how many tokens.
    """
    created = (task.lease.key.job_id.int >> 80) // 1000  # the job's creation, in milliseconds
    if task.request.endpoint == EMBEDDINGS:
        body = embedding_answer(task, completions, metrics)
    elif task.request.endpoint == RESPONSES:
        body = response_answer(task, completions[0], metrics, created)
    else:
        body = _choices_answer(task, completions, metrics, created)
    if task.truncated_tokens:
        body["truncated_prompt_tokens"] = task.truncated_tokens
    return _encoder.encode(body)


def _choices_answer(
    task: Task, completions: Sequence[Completion], metrics: LineMetrics, created: int
) -> dict[str, object]:
    is_chat = task.request.endpoint == CHAT
    prefix, kind = ("chatcmpl-", "chat.completion") if is_chat else ("cmpl-", "text_completion")
    wire_id = item_id(task.lease.key.job_id, task.idx)
    choices = [
        _chat_choice(index, completion, wire_id) if is_chat else _text_choice(index, completion)
        for index, completion in enumerate(completions)
    ]
    return {
        "id": prefix + wire_id,
        "object": kind,
        "created": created,
        "model": task.request.model,
        "choices": choices,
        "usage": _usage(metrics),
        "system_fingerprint": None,
    }


def _chat_choice(index: int, completion: Completion, wire_id: str) -> dict[str, object]:
    tokens = completion.likelihoods
    message: dict[str, object] = {
        "role": "assistant",
        "content": completion.text,
        "refusal": None,
    }
    if completion.tool_calls:
        message["content"] = completion.text or None
        message["tool_calls"] = [
            {
                "id": call_id(wire_id, index, number),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(completion.tool_calls)
        ]
    return {
        "index": index,
        "message": message,
        "logprobs": None if tokens is None else chat_logprobs(tokens),
        "finish_reason": completion.finish_reason,
    }


def _text_choice(index: int, completion: Completion) -> dict[str, object]:
    tokens = completion.likelihoods
    return {
        "index": index,
        "text": completion.text,
        "logprobs": None if tokens is None else text_logprobs(tokens),
        "finish_reason": completion.finish_reason,
    }


def _usage(metrics: LineMetrics) -> dict[str, object]:
    return {
        "prompt_tokens": metrics.prompt_tokens,
        "completion_tokens": metrics.output_tokens,
        "total_tokens": metrics.prompt_tokens + metrics.output_tokens,
        "prompt_tokens_details": {"cached_tokens": metrics.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
