"""Steps of the padded lane: each request has a row in a cache of transformers' own kind.

A prompt is computed alone and whole, as `generate` does it. Then its row joins the rows of similar
length, so that the batch is padded by little, and they are extended together; where the probe
found that a model can't do that, each request stays alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.model_runner import StepResult, draw_step
from engine.models.cache_rows import CacheRows, gather_rows
from engine.models.padded import PaddedModel, State
from engine.request import Request, RequestStatus

MAX_PADDING = 0.5
"""A group's shortest row may be padded by this share of its own length,"""
FREE_PADDING = 16
"""and by so many tokens more."""


@dataclass(slots=True)
class _Group:
    """Requests whose rows lie in one state; all tokens of each but the newest are computed."""

    requests: list[Request]
    state: State

    @property
    def length(self) -> int:
        """Computed tokens of the longest row."""
        return max(request.num_computed_tokens for request in self.requests)

    @property
    def shortest(self) -> int:
        return min(request.num_computed_tokens for request in self.requests)


class PaddedRunner:
    """Runs steps of one model, and keeps a state for each request that is running."""

    def __init__(self, model: PaddedModel, num_token_ids: int) -> None:
        self._model = model
        # Logits may be padded beyond the tokenizer's last id; those must never be sampled.
        self._num_token_ids = num_token_ids
        self._groups: list[_Group] = []

    @property
    def num_rows(self) -> int:
        """Rows of all states; at most those of the running requests once a step began."""
        return sum(len(group.requests) for group in self._groups)

    @torch.inference_mode()
    def run(self, requests: list[Request], num_tokens: list[int]) -> StepResult:
        """Compute all tokens that the requests know: whole prompts, or one token each."""
        assert all(n == r.num_uncomputed_tokens for r, n in zip(requests, num_tokens, strict=True))
        planned = {r.request_id for r in requests if r.num_computed_tokens}
        self._drop_rows()
        logits = self._extend(planned)
        for request in requests:
            if request.request_id not in planned:
                row, state = self._model.restart(request.token_ids, request.num_prompt_tokens)
                logits[request.request_id] = row
                self._groups.append(_Group([request], state))
        stacked = torch.stack([logits[request.request_id] for request in requests])
        rows = list(zip(requests, num_tokens, strict=True))
        return draw_step(stacked[:, : self._num_token_ids], rows)

    def seconds(self) -> dict[str, float]:
        """Nothing: transformers' own forward isn't told apart here."""
        return {}

    def forget(self, request: Request) -> None:
        """Drop the states whose requests have all ended; the next step drops single rows."""
        ended = RequestStatus.FINISHED
        self._groups = [g for g in self._groups if any(r.status is not ended for r in g.requests)]

    def _extend(self, planned: set[str]) -> dict[str, torch.Tensor]:
        """The logits of every planned request that has a state, by request id."""
        if self._model.batches:
            self._groups = list(self._regrouped(planned))
        logits: dict[str, torch.Tensor] = {}
        for group in self._groups:
            if group.requests[0].request_id in planned:
                tokens = [request.token_ids for request in group.requests]
                rows, group.state = self._model.extend(tokens, group.state)
                ids = (request.request_id for request in group.requests)
                logits |= zip(ids, rows, strict=True)
        return logits

    def _drop_rows(self) -> None:
        """Drop rows without blocks: of requests that ended or were preempted, even if they are
        back.
        """
        groups = []
        for group in self._groups:
            rows = [row for row, request in enumerate(group.requests) if _is_computed(request)]
            if len(rows) == len(group.requests):
                groups.append(group)
            elif rows:
                groups.append(_gathered([(group, rows)]))
        self._groups = groups

    def _regrouped(self, planned: set[str]) -> Iterator[_Group]:
        """Groups of rows that are planned together and of similar length; the rest by itself."""
        run: list[_Group] = []
        for group in sorted(
            self._split(planned), key=lambda g: (_is_planned(g, planned), g.length)
        ):
            together = [*run, group]
            shortest = min(part.shortest for part in together)
            is_similar = group.length <= shortest * (1 + MAX_PADDING) + FREE_PADDING
            if run and not (is_similar and _is_planned(run[0], planned)):
                yield _merged(run)
                run = []
            run.append(group)
        if run:
            yield _merged(run)

    def _split(self, planned: set[str]) -> Iterator[_Group]:
        """The groups, those cut in two of which the step computes only some rows."""
        for group in self._groups:
            rows = range(len(group.requests))
            chosen = [row for row in rows if group.requests[row].request_id in planned]
            if chosen and len(chosen) < len(rows):
                yield _gathered([(group, chosen)])
                yield _gathered([(group, [row for row in rows if row not in set(chosen)])])
            else:
                yield group


def _is_computed(request: Request) -> bool:
    return request.status is RequestStatus.RUNNING and request.num_computed_tokens > 0


def _is_planned(group: _Group, planned: set[str]) -> bool:
    return group.requests[0].request_id in planned


def _merged(groups: list[_Group]) -> _Group:
    if len(groups) == 1:
        return groups[0]
    return _gathered([(group, list(range(len(group.requests)))) for group in groups])


def _gathered(parts: list[tuple[_Group, list[int]]]) -> _Group:
    requests = [group.requests[row] for group, rows in parts for row in rows]
    length = max(request.num_computed_tokens for request in requests)
    caches = [CacheRows(group.state["cache"], rows) for group, rows in parts]
    return _Group(requests, {"cache": gather_rows(caches, length)})
