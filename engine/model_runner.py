"""One step on the device: packed inputs, the forward, the sampled tokens.

All device work of a step happens here. The packed batch is built from lists in one go; nothing is
padded to the longest sequence.
"""

from dataclasses import dataclass

import torch

from engine.attention import AttentionBackend
from engine.attention.backend import BatchLayout
from engine.logits import edit_logits, read_logprobs
from engine.models import FusedModel, LoadedModel
from engine.profile import StepProfile
from engine.request import Request
from engine.sampler import sample
from engine.token_logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class StepResult:
    """For each request of the step, in its order.

    Attributes:
        token_ids: the token that follows its last computed one.
        finite: False where the logits hold NaN or infinity; that token means nothing.
        logprobs: of that token, for the requests that ask for them and need the token.
    """

    token_ids: list[int]
    finite: list[bool]
    logprobs: list[TokenLogprobs | None]


class ModelRunner:
    """Runs steps of one model over one KV pool."""

    def __init__(
        self, model: LoadedModel | FusedModel, attention: AttentionBackend, num_token_ids: int
    ) -> None:
        self._model = model
        self._attention = attention
        # Logits may be padded beyond the tokenizer's last id; those must never be sampled.
        self._num_token_ids = num_token_ids
        self.profile = StepProfile()

    def seconds(self) -> dict[str, float]:
        """Seconds by part so far; the forward by its own parts where the model knows them."""
        seconds = self.profile.seconds()
        known = self._model.seconds()
        if known:
            seconds["inputs"] = seconds.pop("forward", 0.0) - sum(known.values())
        return known | seconds

    @torch.inference_mode()
    def run(self, requests: list[Request], num_tokens: list[int]) -> StepResult:
        """Compute the next `num_tokens[i]` tokens of `requests[i]`, whose blocks are reserved.

        Every request gets logits, a chunk that ends inside its prompt too: NaN anywhere in the
        chunk reaches its last row, so the blocks of a bad chunk are never shared.
        """
        order = sorted(range(len(requests)), key=lambda i: _row_order(requests[i], num_tokens[i]))
        rows = [(requests[i], num_tokens[i]) for i in order]
        with self.profile.part("forward"):
            logits = self._forward(rows)[:, : self._num_token_ids]
        with self.profile.part("sampling"):
            finite = logits.sum(-1, dtype=torch.float32).isfinite()
            sampled, logprobs = _draw(logits, rows)
            token_ids, is_finite = sampled.tolist(), finite.tolist()
        row_of = sorted(range(len(order)), key=order.__getitem__)
        return StepResult(
            [token_ids[row] for row in row_of],
            [is_finite[row] for row in row_of],
            [logprobs.get(row) for row in row_of],
        )

    def _forward(self, rows: list[tuple[Request, int]]) -> torch.Tensor:
        """[rows, vocab]: the logits after each row's last token of this step."""
        token_ids: list[int] = []
        positions: list[int] = []
        last_rows: list[int] = []
        for request, num_tokens in rows:
            start = request.num_computed_tokens
            token_ids += request.token_ids[start : start + num_tokens]
            positions += range(start, start + num_tokens)
            last_rows.append(len(token_ids) - 1)
        self._attention.begin(
            BatchLayout(
                query_lens=[n for _, n in rows],
                context_lens=[request.num_computed_tokens + n for request, n in rows],
                block_tables=[request.block_table for request, _ in rows],
            )
        )
        device = self._model.device
        return self._model.logits(
            torch.tensor(token_ids, device=device),
            torch.tensor(positions, device=device),
            torch.tensor(last_rows, device=device),
            self._attention,
        )


def _draw(
    logits: torch.Tensor, rows: list[tuple[Request, int]]
) -> tuple[torch.Tensor, dict[int, TokenLogprobs]]:
    """A token for each row ([rows]), and log-probabilities by row, from the logits as they came."""
    # A chunk that ends inside its prompt already knows its next token, whatever is drawn.
    takes = [num_tokens == request.num_uncomputed_tokens for request, num_tokens in rows]
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
