"""A model's answer as the response object of the wire contract."""

from runner.domain.ids import call_id, item_id
from runner.domain.leases import LineMetrics
from runner.inference.backend import Completion, Task
from runner.inference.logprobs import chat_logprobs


def response_answer(
    task: Task, completion: Completion, metrics: LineMetrics, created: int
) -> dict[str, object]:
    """The body of a line of /v1/responses; ``created`` in seconds since 1970."""
    name = item_id(task.lease.key.job_id, task.idx)
    is_cut = completion.finish_reason == "length"
    status = "incomplete" if is_cut else "completed"
    request = task.request
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "model": request.model,
        "output": _output(name, completion, status),
        "usage": _usage(metrics),
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "background": False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        **(request.repeated or {}),
    }


def _output(name: str, completion: Completion, status: str) -> list[dict[str, object]]:
    """What was said, unless there were calls only, and the calls.

    A call was read to its end, so it is whole even where the answer ran out of tokens after it.
    """
    items = []
    if completion.text or not completion.tool_calls:
        items.append(_message(f"msg_{name}", completion, status))
    for number, call in enumerate(completion.tool_calls):
        item: dict[str, object] = {
            "id": f"fc_{name}_{number}",
            "type": "function_call",
            "call_id": call_id(name, 0, number),
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        items.append(item)
    return items


def _message(name: str, completion: Completion, status: str) -> dict[str, object]:
    told = completion.likelihoods
    text = {
        "type": "output_text",
        "text": completion.text,
        "annotations": [],
        "logprobs": [] if told is None else chat_logprobs(told)["content"],
    }
    return {
        "id": name,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [text],
    }


def _usage(metrics: LineMetrics) -> dict[str, object]:
    return {
        "input_tokens": metrics.prompt_tokens,
        "input_tokens_details": {"cached_tokens": metrics.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": metrics.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": metrics.prompt_tokens + metrics.output_tokens,
    }
