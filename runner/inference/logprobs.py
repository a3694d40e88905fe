"""Log-probabilities of output tokens in the two shapes of the wire contract.

Every output token has an entry, the one that ended the output too.
"""

import codecs
from collections.abc import Sequence

from runner.inference.backend import Likelihood, TokenLikelihood

LEAST = -9999.0
"""Told for a token that is impossible: JSON has no infinity."""


def chat_logprobs(tokens: Sequence[TokenLikelihood]) -> dict[str, object]:
    """As a choice of a chat tells them."""
    content = [
        {**_entry(token.taken), "top_logprobs": [_entry(other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def text_logprobs(tokens: Sequence[TokenLikelihood]) -> dict[str, object]:
    """As a choice of a completion tells them.

    The likeliest tokens of a place are a dictionary that always holds the token that was taken.
    Offsets count characters of the choice's text; one that a token only begins is not counted.
    """
    offsets = []
    letters = 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        offsets.append(letters)
        letters += len(decoder.decode(token.taken.token))
    return {
        "tokens": [_text(token.taken) for token in tokens],
        "token_logprobs": [_value(token.taken) for token in tokens],
        "top_logprobs": [
            {_text(one): _value(one) for one in (*token.top, token.taken)} for token in tokens
        ],
        "text_offset": offsets,
    }


def _entry(one: Likelihood) -> dict[str, object]:
    return {"token": _text(one), "logprob": _value(one), "bytes": list(one.token)}


def _text(one: Likelihood) -> str:
    """The token as text, or as its bytes in writing where they are no whole characters."""
    try:
        return one.token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in one.token)


def _value(one: Likelihood) -> float:
    return max(LEAST, round(one.logprob, 6))
