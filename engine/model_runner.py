"""One step on the device: packed inputs, the forward, the sampled tokens.

All device work of a step happens here. The packed batch is built from lists in one go; nothing is
padded to the longest sequence.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from engine.attention import AttentionBackend
from engine.attention.backend import BatchLayout
from engine.logits import edit_logits, read_logprobs
from engine.models import FusedModel, LoadedModel, Wanted
from engine.pooler import Chunk, pool_chunks
from engine.pooling import Vector
from engine.profile import StepProfile
from engine.request import Request
from engine.sampler import sample
from engine.token_logprobs import TokenLogprobs
from engine.tracing import stretch


@dataclass(frozen=True, slots=True)
class StepResult:
    """For each request of the step, in its order.

    Attributes:
        token_ids: the tokens that follow its known ones: one more than guesses held; none inside a
            prompt and where states are pooled.
        finite: False where logits or states hold NaN or infinity; what came of them means nothing.
            The cause may be a guess: a row's keys are read in tiles, where masked NaN spoils a sum.
        logprobs: of that one token, for the requests that ask for them and need the token.
        states: [hidden], what the step adds to the request's pooled states, where it has any.
    """

    token_ids: list[tuple[int, ...]]
    finite: list[bool]
    logprobs: list[TokenLogprobs | None]
    states: list[Vector | None]


class Runner(Protocol):
    """Whatever computes steps: the lane that a model runs in."""

    def run(self, requests: list[Request], num_tokens: list[int]) -> StepResult:
        """Compute the next `num_tokens[i]` tokens of `requests[i]`, whose blocks are reserved.

        The request's guesses are the last of them.
        """
        ...

    def forget(self, request: Request) -> None:
        """Drop what is kept for a request that has ended."""
        ...

    def seconds(self) -> dict[str, float]:
        """Seconds by part of all steps so far, as far as they are told apart."""
        ...


@dataclass(frozen=True, slots=True)
class _Forward:
    """What a forward gave, by row of the step.

    Attributes:
        with_logits: the rows that logits are of.
        logits: [with_logits, vocab].
        token_ids, finite: the new tokens of rows that need no more than the likeliest.
        hidden: [tokens, hidden] if any row is pooled.
    """

    with_logits: list[int]
    logits: torch.Tensor
    token_ids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    finite: dict[int, bool] = field(default_factory=dict)
    hidden: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Packed:
    """The tokens of a step.

    Attributes:
        token_ids, positions: [tokens].
        last_known: where each row's last known token is; its guesses follow.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    last_known: list[int]


class ModelRunner:
    """Runs steps of one model over one KV pool."""

    def __init__(
        self, model: LoadedModel | FusedModel, attention: AttentionBackend, num_token_ids: int
    ) -> None:
        self._model = model
        self._attention = attention
        # Logits may be padded beyond the tokenizer's last id; those must never be sampled.
        self._num_token_ids = num_token_ids
        self._profile = StepProfile()

    def seconds(self) -> dict[str, float]:
        """Seconds by part so far; the forward by its own parts where the model knows them."""
        seconds = self._profile.seconds()
        known = self._model.seconds()
        if known:
            seconds["inputs"] = seconds.pop("forward", 0.0) - sum(known.values())
        return known | seconds

    @torch.inference_mode()
    def run(self, requests: list[Request], num_tokens: list[int]) -> StepResult:
        """Compute the next `num_tokens[i]` tokens of `requests[i]`, whose blocks are reserved.

        The request's guesses are the last of them. Every request that generates gets logits, a
        chunk that ends inside its prompt too: NaN anywhere in the chunk reaches its last row, so
        the blocks of a bad chunk are never shared.
        """
        order = sorted(range(len(requests)), key=lambda i: _row_order(requests[i], num_tokens[i]))
        # From here on a row's tokens are the known ones; its guesses stand in the request.
        rows = [(requests[i], num_tokens[i] - len(requests[i].guesses)) for i in order]
        generating = [row for row, (request, _) in enumerate(rows) if request.pooled is None]
        with self._profile.part("forward"):
            forward = self._forward(rows, generating)
        states = {} if forward.hidden is None else _pool(forward.hidden, rows)
        finite = {row: bool(np.isfinite(vector).all()) for row, vector in states.items()}
        finite.update(forward.finite)
        token_ids = {**forward.token_ids}
        logprobs: dict[int, TokenLogprobs | None] = {}
        if forward.with_logits:
            with self._profile.part("sampling"):
                taken = forward.logits[:, : self._num_token_ids]
                drawn = draw_step(taken, [rows[row] for row in forward.with_logits])
            token_ids.update(zip(forward.with_logits, drawn.token_ids, strict=True))
            finite.update(zip(forward.with_logits, drawn.finite, strict=True))
            logprobs = dict(zip(forward.with_logits, drawn.logprobs, strict=True))
        row_of = sorted(range(len(order)), key=order.__getitem__)
        return StepResult(
            [token_ids.get(row, ()) for row in row_of],
            [finite[row] for row in row_of],
            [logprobs.get(row) for row in row_of],
            [states.get(row) for row in row_of],
        )

    def forget(self, request: Request) -> None:
        """The pool's blocks belong to the block manager: nothing is kept here."""

    def _forward(self, rows: list[tuple[Request, int]], generating: list[int]) -> _Forward:
        """Run the model on the rows' tokens; `generating` are the rows that take a token."""
        packed = self._pack(rows)
        inputs, device = (packed.token_ids, packed.positions), self._model.device
        if len(generating) < len(rows):
            wanted = _index([packed.last_known[row] for row in generating], device)
            hidden, logits = self._model.hidden_and_logits(*inputs, wanted, self._attention)
            return _Forward(generating, logits, hidden=hidden)
        if isinstance(self._model, FusedModel):
            return self._likeliest(self._model, packed, rows)
        wanted = _index(packed.last_known, device)
        return _Forward(generating, self._model.logits(*inputs, wanted, self._attention))

    def _likeliest(
        self, model: FusedModel, packed: _Packed, rows: list[tuple[Request, int]]
    ) -> _Forward:
        """Logits only of the rows that need them; of others the likeliest token, or tokens."""
        with_logits = [row for row in range(len(rows)) if _needs_logits(*rows[row])]
        needs_none = [row for row in range(len(rows)) if not _needs_logits(*rows[row])]
        wanted = [packed.last_known[row] for row in with_logits]
        for row in needs_none:
            first = packed.last_known[row]
            wanted += range(first, first + 1 + len(rows[row][0].guesses))
        likeliest, logits = model.likeliest_and_logits(
            packed.token_ids,
            packed.positions,
            _index(wanted, model.device),
            self._attention,
            Wanted(len(with_logits), self._num_token_ids),
        )
        forward, start = _Forward(with_logits, logits), len(with_logits)
        for row in needs_none:
            request, num_tokens = rows[row]
            following, forward.finite[row] = likeliest.following(start, request.guesses)
            is_inside = num_tokens < request.num_uncomputed_tokens
            forward.token_ids[row] = () if is_inside else following
            start += 1 + len(request.guesses)
        return forward

    def _pack(self, rows: list[tuple[Request, int]]) -> _Packed:
        """Lay the tokens of all rows behind each other, and have the attention prepare for them."""
        token_ids: list[int] = []
        positions: list[int] = []
        layout = BatchLayout([], [], [])
        last_known: list[int] = []
        for request, num_tokens in rows:
            start = request.num_computed_tokens
            end = start + num_tokens + len(request.guesses)
            token_ids += request.token_ids[start : start + num_tokens]
            last_known.append(len(token_ids) - 1)
            token_ids += request.guesses
            positions += range(start, end)
            layout.query_lens.append(end - start)
            layout.context_lens.append(end)
            layout.block_tables.append(request.block_table)
        self._attention.begin(layout)
        device = self._model.device
        return _Packed(
            torch.tensor(token_ids, device=device),
            torch.tensor(positions, device=device),
            last_known,
        )


def _index(rows: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(rows, device=device, dtype=torch.long)


def _needs_logits(request: Request, num_tokens: int) -> bool:
    """Whether a row takes more than its likeliest token.

    A chunk that ends inside its prompt takes none: its next token is known.
    """
    return num_tokens == request.num_uncomputed_tokens and not request.takes_likeliest


def _pool(hidden: torch.Tensor, rows: list[tuple[Request, int]]) -> dict[int, Vector]:
    """What the chunk of each pooled row adds to its request's states, by row."""
    chunks: dict[int, Chunk] = {}
    start = 0
    for row, (request, num_tokens) in enumerate(rows):
        if request.pooled is not None:
            chunks[row] = Chunk(start, start + num_tokens, request.pooled.params.pooling)
        start += num_tokens + len(request.guesses)
    return dict(zip(chunks, pool_chunks(hidden, list(chunks.values())), strict=True))


def draw_step(logits: torch.Tensor, rows: list[tuple[Request, int]]) -> StepResult:
    """A token for each row of [rows, ids that may be sampled] that needs one, in their order."""
    takes = [num_tokens == request.num_uncomputed_tokens for request, num_tokens in rows]
    finite = logits.sum(-1, dtype=torch.float32).isfinite()
    with stretch("sampling"):
        sampled, logprobs = _draw(logits, rows, takes)
    return StepResult(
        [(token_id,) if new else () for token_id, new in zip(sampled.tolist(), takes, strict=True)],
        finite.tolist(),
        [logprobs.get(row) for row in range(len(rows))],
        [None] * len(rows),
    )


def _draw(
    logits: torch.Tensor, rows: list[tuple[Request, int]], takes: list[bool]
) -> tuple[torch.Tensor, dict[int, TokenLogprobs]]:
    """A token for each row ([rows]), and log-probabilities by row, from the logits as they came.

    A chunk that ends inside its prompt takes none: it knows its next token, whatever is drawn.
    """
    counts = [r.params.logprobs if new else None for (r, _), new in zip(rows, takes, strict=True)]
    edits = [r.edits if new else None for (r, _), new in zip(rows, takes, strict=True)]
    sampled = sample(
        edit_logits(logits, edits),
        [request.params for request, _ in rows],
        [request.num_output_tokens for request, _ in rows],
    )
    return sampled, read_logprobs(logits, counts, sampled)


def _row_order(request: Request, num_tokens: int) -> tuple[bool, int]:
    """Single queries first by ascending length: BatchLayout's order."""
    return (num_tokens != 1, request.num_computed_tokens if num_tokens == 1 else 0)
