"""Vectors as the JSON body of the wire contract."""

import base64
import struct
from collections.abc import Sequence

from runner.domain.leases import LineMetrics
from runner.inference.backend import Completion, Task
from runner.inference.embeddings import BASE64


def embedding_answer(
    task: Task, completions: Sequence[Completion], metrics: LineMetrics
) -> dict[str, object]:
    """The body of a line of /v1/embeddings, a vector for each input in its order."""
    options = task.request.embedding
    assert options is not None
    render = _text if options.encoding_format == BASE64 else _numbers
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": render(completion.vector)}
            for index, completion in enumerate(completions)
        ],
        "model": task.request.model,
        "usage": {"prompt_tokens": metrics.prompt_tokens, "total_tokens": metrics.prompt_tokens},
    }


def _text(vector: bytes) -> str:
    return base64.b64encode(vector).decode()


def _numbers(vector: bytes) -> list[float]:
    """Each number by the nine digits that tell a float32 from all others."""
    return [float(f"{value:.9g}") for (value,) in struct.iter_unpack("<f", vector)]
