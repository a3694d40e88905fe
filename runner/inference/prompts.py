"""A line's prompts as token ids, shortened where the line allows it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runner.domain.truncation import Truncation
from runner.inference.bodies import BadBody
from runner.inference.requests import LineRequest, Prompt
from runner.inference.truncation import PromptTokens, cut_chat, cut_ids, cut_text


@dataclass(frozen=True, slots=True)
class TokenisedLine:
    """A line with its prompts as token ids.

    Attributes:
        request: its prompts are those that run: a shortened text is given by its ids.
        truncated_tokens: how many all prompts together have lost.
    """

    request: LineRequest
    token_ids: tuple[tuple[int, ...], ...]
    truncated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class WrittenPrompt:
    """A prompt as it goes into the tokenizer, or as the ids that it came with."""

    text: str = ""
    add_special_tokens: bool = False
    token_ids: tuple[int, ...] | None = None


def tokenise(request: LineRequest, tokens: PromptTokens, context: int | None) -> TokenisedLine:
    """Tokenise the prompts of a line for a model that holds ``context`` tokens.

    Raises:
        BadBody: its truncation can't be had.
    """
    whole = [
        tokens.encode(prompt.text, prompt.add_special_tokens)
        if prompt.token_ids is None
        else prompt.token_ids
        for prompt in write_prompts(request, tokens)
    ]
    return fit(request, whole, tokens, context)


def write_prompts(request: LineRequest, tokens: PromptTokens) -> list[WrittenPrompt]:
    """The prompts of a line as they go into the tokenizer."""
    return [_written(prompt, tokens) for prompt in request.prompts]


def fit(
    request: LineRequest,
    whole: Sequence[Sequence[int]],
    tokens: PromptTokens,
    context: int | None,
) -> TokenisedLine:
    """A line with its tokenised prompts, shortened where that is needed and allowed.

    Raises:
        BadBody: its truncation can't be had.
    """
    if request.truncation.policy is Truncation.ERROR:
        return TokenisedLine(request, tuple(map(tuple, whole)))
    limit = _limit(request, context)
    if limit is None or all(len(ids) <= limit for ids in whole):
        return TokenisedLine(request, tuple(map(tuple, whole)))
    policy = request.truncation.policy
    cut = [
        ids if len(ids) <= limit else _cut(prompt, limit, policy, tokens)
        for prompt, ids in zip(request.prompts, whole, strict=True)
    ]
    prompts = tuple(
        prompt if len(ids) == len(before) else Prompt(token_ids=tuple(ids))
        for prompt, ids, before in zip(request.prompts, cut, whole, strict=True)
    )
    lost = sum(map(len, whole)) - sum(map(len, cut))
    return TokenisedLine(replace(request, prompts=prompts), tuple(map(tuple, cut)), lost)


def _written(prompt: Prompt, tokens: PromptTokens) -> WrittenPrompt:
    if prompt.messages is not None:
        return WrittenPrompt(tokens.chat_text(prompt.messages))
    if prompt.text is not None:
        return WrittenPrompt(prompt.text, add_special_tokens=True)
    return WrittenPrompt(token_ids=prompt.token_ids or ())


def _cut(prompt: Prompt, limit: int, policy: Truncation, tokens: PromptTokens) -> Sequence[int]:
    if prompt.messages is not None:
        return cut_chat(prompt.messages, limit, policy, tokens)
    if prompt.text is not None:
        return cut_text(prompt.text, limit, policy, tokens)
    return cut_ids(prompt.token_ids or (), limit, policy)


def _limit(request: LineRequest, context: int | None) -> int | None:
    """The most tokens a prompt may have; None without limits.

    Left to itself it leaves room for all output that is asked for. More output than the context
    holds is no wish that a shorter prompt could grant: then, as without one, for one token.
    """
    wanted = request.truncation.tokens
    if context is None:
        return wanted
    output = 0 if request.embedding is not None else 1
    if wanted is not None:
        if wanted + output > context:
            raise BadBody(
                f"truncate_prompt_tokens must be at most {context - output:,}, what the model's "
                f"context of {context:,} tokens has room for.",
                "truncate_prompt_tokens",
            )
        return wanted
    most = request.sampling.max_tokens
    if output and most is not None and most < context:
        output = most
    return context - output
