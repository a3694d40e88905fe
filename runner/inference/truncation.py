"""Shortening a prompt by policy: what is asked for, and how ids, texts and chats are cut.

Of a chat whole turns go first; only when one turn is left is its text cut, between tokens. The chat
template is rendered anew around what is left, so its frame and special tokens are always whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runner.domain.truncation import POLICIES, Truncation
from runner.inference.bodies import BadBody

Messages = Sequence[Mapping[str, Any]]
ALL_THAT_FITS = -1
_SYSTEM = "system"


class PromptTokens(Protocol):
    """A model's way from prompts to token ids."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a text, with or without those that are put around any text."""

    def token_starts(self, text: str) -> Sequence[int]:
        """For each token of a text alone, the character with which it begins."""

    def chat_text(self, messages: Messages) -> str:
        """A conversation in its frame, up to where the answer begins."""

    def render_chat(self, messages: Messages) -> list[int]:
        """Token ids of ``chat_text``, which has all special tokens already."""


@dataclass(frozen=True, slots=True)
class TruncationOptions:
    """The policy, and the most tokens of a prompt; None is what leaves room for the answer."""

    policy: Truncation = Truncation.ERROR
    tokens: int | None = None


def read_truncation(policy: str | None, tokens: int | None) -> TruncationOptions:
    """Check the two fields; a number alone keeps the last tokens, as vLLM does.

    Raises:
        BadBody: one is not valid, or they contradict each other.
    """
    if policy is not None and policy not in POLICIES:
        raise BadBody(f"truncate_prompt must be one of {', '.join(POLICIES)}.", "truncate_prompt")
    if tokens is None:
        return TruncationOptions(Truncation(policy or Truncation.ERROR))
    if tokens != ALL_THAT_FITS and tokens < 1:
        raise BadBody(
            f"truncate_prompt_tokens must be at least 1, or {ALL_THAT_FITS} for all that fit.",
            "truncate_prompt_tokens",
        )
    if policy == Truncation.ERROR:
        raise BadBody(
            "truncate_prompt is 'error', so truncate_prompt_tokens has no use; remove one.",
            "truncate_prompt_tokens",
        )
    most = None if tokens == ALL_THAT_FITS else tokens
    return TruncationOptions(Truncation(policy or Truncation.KEEP_LAST), most)


class TooLong(BadBody):
    """Cut as far as the policy allows, the prompt is still too long."""

    def __init__(self, limit: int, param: str) -> None:
        super().__init__(
            f"What must be kept of the prompt has more than the {limit:,} tokens there is room "
            "for; shorten it, or choose another truncate_prompt.",
            param,
            "context_length_exceeded",
        )


def cut_ids(ids: Sequence[int], limit: int, policy: Truncation) -> Sequence[int]:
    """The first or the last ``limit`` of some token ids (at least 1)."""
    return ids[:limit] if policy is Truncation.KEEP_FIRST else ids[-limit:]


def cut_text(text: str, limit: int, policy: Truncation, tokens: PromptTokens) -> Sequence[int]:
    """At most ``limit`` token ids of a text, with all that the tokenizer puts around it.

    Raises:
        TooLong: those alone fill it.
    """
    whole = tokens.encode(text, add_special_tokens=True)
    if len(whole) <= limit:
        return whole
    inner = tokens.encode(text, add_special_tokens=False)
    before = _place_of(inner, whole)
    after = len(whole) - before - len(inner)
    room = limit - before - after
    if room < 1:
        raise TooLong(limit, "truncate_prompt_tokens")
    kept = cut_ids(inner, room, policy)
    return [*whole[:before], *kept, *whole[len(whole) - after :]]


def _place_of(inner: list[int], whole: list[int]) -> int:
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return start
    raise AssertionError("special tokens are put around a text, never into it")


def cut_chat(messages: Messages, limit: int, policy: Truncation, tokens: PromptTokens) -> list[int]:
    """At most ``limit`` token ids of a conversation in its whole frame.

    Raises:
        TooLong: what the policy keeps does not fit.
    """
    whole = tokens.render_chat(messages)
    if len(whole) <= limit:
        return whole
    chat = _Chat.of(messages, policy)
    fewest, best = 1, tokens.render_chat(chat.with_turns(1))
    if len(best) > limit:
        return _cut_contents(chat, limit, tokens)
    most = len(chat.turns)  # too many, as is known
    while most - fewest > 1:
        count = (fewest + most) // 2
        ids = tokens.render_chat(chat.with_turns(count))
        if len(ids) <= limit:
            fewest, best = count, ids
        else:
            most = count
    return best


@dataclass(frozen=True, slots=True)
class _Chat:
    """A conversation in parts: what stays whatever comes, and turns, each from a user's message on.

    Where the last is to be kept without its system message, that is the first turn to go.
    """

    always: list[Mapping[str, Any]]
    turns: list[list[Mapping[str, Any]]]
    keeps_first: bool

    @classmethod
    def of(cls, messages: Messages, policy: Truncation) -> "_Chat":
        begin = 0
        while begin < len(messages) - 1 and messages[begin]["role"] == _SYSTEM:
            begin += 1
        head, turns = list(messages[:begin]), _turns(messages[begin:])
        if policy is Truncation.KEEP_LAST:
            return cls([], [head, *turns] if head else turns, keeps_first=False)
        return cls(head, turns, policy is Truncation.KEEP_FIRST)

    def with_turns(self, count: int) -> list[Mapping[str, Any]]:
        """The conversation with its first or last few turns only."""
        kept = self.turns[:count] if self.keeps_first else self.turns[-count:]
        return self.always + [message for turn in kept for message in turn]


def _turns(messages: Messages) -> list[list[Mapping[str, Any]]]:
    turns: list[list[Mapping[str, Any]]] = []
    for message in messages:
        if message["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def _cut_contents(chat: _Chat, limit: int, tokens: PromptTokens) -> list[int]:
    """Cut the texts of the one turn that is kept, from the side that the policy gives up."""
    messages = [dict(message) for message in chat.with_turns(1)]
    places = list(range(len(chat.always), len(messages)))
    for place in reversed(places) if chat.keeps_first else places:
        text = messages[place].get("content")
        if not isinstance(text, str) or not text:
            continue
        ids = _cut_one(messages, place, limit, chat.keeps_first, tokens)
        if ids is not None:
            return ids
    raise TooLong(limit, "truncate_prompt")


def _cut_one(
    messages: list[dict[str, Any]], place: int, limit: int, keeps_first: bool, tokens: PromptTokens
) -> list[int] | None:
    """What of one message lets all fit; None if one token of it is too much.

    How many tokens a rest takes is known only in its frame, so it is measured there, and the next
    try is shorter by what was too much. The message is left as it was tried last.
    """
    text = messages[place]["content"]
    starts = tokens.token_starts(text)
    keep = len(starts)
    ids = tokens.render_chat(messages)
    while len(ids) > limit:
        if keep <= 1:
            return None
        keep = max(1, keep - (len(ids) - limit))
        at = keep if keeps_first else len(starts) - keep
        messages[place]["content"] = text[: starts[at]] if keeps_first else text[starts[at] :]
        ids = tokens.render_chat(messages)
    return ids
