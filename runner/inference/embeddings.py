"""The body of a line of /v1/embeddings: what it asks of a model, checked."""

from dataclasses import dataclass
from typing import Any

import msgspec

from runner.inference.bodies import BadBody, read_body

MAX_INPUTS = 2048
"""Texts or lists of token ids in one line, as the contract has it."""
FLOAT, BASE64 = "float", "base64"
POOLINGS = ("last", "mean")


class EmbeddingsBody(msgspec.Struct):
    """The body of /v1/embeddings, with ours: how to pool, and what to do when it is too long."""

    model: str
    input: Any = None
    encoding_format: str | None = None
    dimensions: int | None = None
    pooling: str | None = None
    truncate_prompt: str | None = None
    truncate_prompt_tokens: int | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """How a line wants its vectors.

    Attributes:
        pooling: one of ``POOLINGS``; None is the way of the model's authors.
        dimensions: None is all that the model has. How many that is, only its engine knows.
        encoding_format: ``FLOAT`` for a list of numbers, ``BASE64`` for little-endian float32.
    """

    pooling: str | None
    dimensions: int | None
    encoding_format: str


_decoder = msgspec.json.Decoder(EmbeddingsBody)
_FIELDS = frozenset(EmbeddingsBody.__struct_fields__)


def read_embeddings(body: msgspec.Raw) -> EmbeddingsBody:
    """Read the body of an embedding; raises as ``read_chat`` does."""
    return read_body(_decoder, body, _FIELDS)


def embedding_options(body: EmbeddingsBody) -> EmbeddingOptions:
    """Check the fields that say what vectors are wanted.

    Raises:
        BadBody: a field has none of its values.
    """
    encoding = body.encoding_format or FLOAT
    if encoding not in (FLOAT, BASE64):
        raise BadBody("encoding_format must be float or base64.", "encoding_format")
    if body.dimensions is not None and body.dimensions < 1:
        raise BadBody("dimensions must be at least 1.", "dimensions")
    pooling = None if body.pooling is None else body.pooling.lower()
    if pooling is not None and pooling not in POOLINGS:
        raise BadBody(f"pooling must be one of {', '.join(POOLINGS)}.", "pooling")
    return EmbeddingOptions(pooling, body.dimensions, encoding)
