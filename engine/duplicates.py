"""Requests that must get the same answer, of which one is computed and the others copy it.

The original is the only one that the scheduler knows; the copies wait here for its end.
"""

from collections.abc import Hashable
from dataclasses import dataclass, fields

from engine.request import Request
from engine.sampling_params import SamplingParams

_DRAW = ("temperature", "top_p", "top_k", "min_p", "seed")
"""What makes no difference to a greedy request."""


@dataclass(slots=True)
class _Group:
    """Equal requests, the original first, with the priority that each came with."""

    key: Hashable
    members: list[Request]
    priorities: dict[str, int]

    @property
    def priority(self) -> int:
        return max(self.priorities.values())


class Duplicates:
    """Who copies whom, of the requests inside the engine."""

    def __init__(self, merges: bool) -> None:
        """Without `merges` every request is an original."""
        self._merges = merges
        self._by_key: dict[Hashable, _Group] = {}
        self._group_of: dict[str, _Group] = {}

    @property
    def num_copies(self) -> int:
        """Requests that wait for the answer of another."""
        return len(self._group_of) - len(self._by_key)

    def join(self, request: Request, alone: bool = False) -> Request | None:
        """Enter a request; returns the original that it copies, or None if it is one.

        `alone` makes it one that has no copies.
        """
        key = _answer_key(request) if self._merges and not alone else request.request_id
        group = self._by_key.setdefault(key, _Group(key, [], {}))
        group.members.append(request)
        group.priorities[request.request_id] = request.priority
        self._group_of[request.request_id] = group
        return group.members[0] if len(group.members) > 1 else None

    def priority_of(self, request: Request) -> int:
        """The highest priority among a request and its equals."""
        return self._group_of[request.request_id].priority

    def is_copy(self, request: Request) -> bool:
        """Whether another is computed for this request."""
        return self._group_of[request.request_id].members[0] is not request

    def leave(self, request: Request) -> Request | None:
        """Take one request out; returns its group's original from now on, if any is left."""
        group = self._group_of.pop(request.request_id)
        group.members.remove(request)
        del group.priorities[request.request_id]
        if not group.members:
            del self._by_key[group.key]
            return None
        return group.members[0]

    def dissolve(self, original: Request) -> list[Request]:
        """Take the whole group of an original out; returns its copies."""
        group = self._group_of[original.request_id]
        assert group.members[0] is original
        del self._by_key[group.key]
        for member in group.members:
            del self._group_of[member.request_id]
        return group.members[1:]

    def check_integrity(self) -> None:
        """Assert that every request is in the one group of its key."""
        groups = self._by_key.values()
        assert sum(len(group.members) for group in groups) == len(self._group_of)
        for group in groups:
            assert group.priorities.keys() == {member.request_id for member in group.members}
            assert all(self._group_of[m.request_id] is group for m in group.members)


def _answer_key(request: Request) -> Hashable:
    """Everything that an answer depends on: equal keys, equal answers."""
    prompt = tuple(request.prompt_token_ids)
    if request.pooled is not None:
        return prompt, request.pooled.params
    return prompt, _params_key(request.params)


def _params_key(params: SamplingParams) -> Hashable:
    ignored = _DRAW if params.is_greedy else ()
    values = {f.name: getattr(params, f.name) for f in fields(params) if f.name not in ignored}
    values["logit_bias"] = tuple(sorted(params.logit_bias.items()))
    return tuple(values.items())
