"""Arithmetic on logits around the draw of a token: the requests' edits, and log-probabilities.

Both work on all rows of a step that ask for it at once; the other rows are not read.
"""

from array import array
from collections.abc import Sequence

import torch

from engine.grammar import WORD_BITS, GrammarState, allowed_tokens
from engine.logit_edits import LogitEdits
from engine.token_logprobs import TokenLogprobs

MAX_ROW_ELEMENTS = 1 << 24
"""Rows are read in groups, so that their float32 copies take at most 64 MiB."""


def edit_logits(logits: torch.Tensor, edits: Sequence[LogitEdits | None]) -> torch.Tensor:
    """Apply bias, then penalties, then the masks: end tokens that come too early, the grammar.

    Args:
        logits: [rows, vocab]; they stay as they are.
        edits: of each row, None where it has none.

    Returns:
        [rows, vocab]: a float32 copy if any row has edits, else the logits themselves.
    """
    rows = [(row, edit) for row, edit in enumerate(edits) if edit is not None and edit.has_any]
    if not rows:
        return logits
    logits = logits.to(torch.float32, copy=True)
    _add_bias(logits, rows)
    _penalise(logits, rows)
    early = [(row, edit) for row, edit in rows if edit.is_early and edit.grammar is None]
    row_ids, ids = _pairs(early, [edit.end_ids for _, edit in early], logits.device)
    logits[row_ids, ids] = float("-inf")
    _keep_allowed(logits, rows)
    return logits


def read_logprobs(
    logits: torch.Tensor, counts: Sequence[int | None], token_ids: torch.Tensor
) -> dict[int, TokenLogprobs]:
    """Log-probabilities of the rows that ask for them, in the model's own distribution.

    Args:
        logits: [rows, vocab], before any edit.
        counts: how many of the likeliest tokens each row wants; None where it asks for nothing.
        token_ids: [rows]: the token that each row took.

    Returns:
        By row.
    """
    wanted = [(row, count) for row, count in enumerate(counts) if count is not None]
    found: dict[int, TokenLogprobs] = {}
    group = max(1, MAX_ROW_ELEMENTS // logits.shape[1])
    for start in range(0, len(wanted), group):
        part = wanted[start : start + group]
        rows = torch.tensor([row for row, _ in part], device=logits.device)
        logprobs = logits[rows].float().log_softmax(-1)
        width = min(max(count for _, count in part), logits.shape[1])
        best, best_ids = (side.tolist() for side in logprobs.topk(width, dim=-1))
        taken = logprobs.gather(1, token_ids[rows][:, None])[:, 0].tolist()
        for i, (row, count) in enumerate(part):
            top = zip(best_ids[i][:count], best[i][:count], strict=True)
            found[row] = TokenLogprobs(taken[i], tuple(top))
    return found


_Rows = list[tuple[int, LogitEdits]]


def _add_bias(logits: torch.Tensor, rows: _Rows) -> None:
    row_ids, ids = _pairs(rows, [edit.bias_ids for _, edit in rows], logits.device)
    values = _joined("d", [edit.bias_values for _, edit in rows])
    logits[row_ids, ids] += values.to(logits.device, logits.dtype)


def _penalise(logits: torch.Tensor, rows: _Rows) -> None:
    """Scale what was seen towards unlikely (Keskar et al., CTRL, 2019), then subtract OpenAI's.

    A row's seen ids are distinct, so every logit is written once.
    """
    device = logits.device
    row_ids, ids = _pairs(rows, [edit.seen_ids for _, edit in rows], device)
    if not len(ids):
        return
    counts = _joined("q", [edit.seen_counts for _, edit in rows]).to(device, logits.dtype)
    lengths = torch.tensor([len(edit.seen_ids) for _, edit in rows])
    penalties = torch.tensor(
        [
            (p.repetition_penalty, p.frequency_penalty, p.presence_penalty)
            for p in (edit.params for _, edit in rows)
        ]
    )
    repetition, frequency, presence = penalties.repeat_interleave(lengths, 0).to(device).unbind(1)
    values = logits[row_ids, ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    logits[row_ids, ids] = values - frequency * counts - presence * (counts > 0)


def _keep_allowed(logits: torch.Tensor, rows: _Rows) -> None:
    """Rule out what the rows' grammars don't allow; end tokens that come too early with it."""
    states: list[GrammarState] = []
    held_back: list[Sequence[int]] = []
    row_ids: list[int] = []
    for row, edit in rows:
        if edit.grammar is not None:
            states.append(edit.grammar)
            held_back.append(edit.end_ids if edit.is_early else ())
            row_ids.append(row)
    if not states:
        return
    masks = torch.from_numpy(allowed_tokens(states, held_back))
    bits = torch.arange(WORD_BITS, dtype=torch.int32, device=logits.device)
    group = max(1, MAX_ROW_ELEMENTS // logits.shape[1])
    for start in range(0, len(row_ids), group):
        words = masks[start : start + group].to(logits.device)
        forbidden = (words[:, :, None] >> bits & 1).view(len(words), -1)[:, : logits.shape[1]] == 0
        index = torch.tensor(row_ids[start : start + group], device=logits.device)
        logits[index] = logits[index].masked_fill(forbidden, float("-inf"))


def _pairs(
    rows: _Rows, parts: Sequence["array[int]"], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers and token ids of the logits that `parts` name, [pairs] each."""
    lengths = torch.tensor([len(part) for part in parts], dtype=torch.int64)
    row_ids = torch.tensor([row for row, _ in rows], dtype=torch.int64).repeat_interleave(lengths)
    return row_ids.to(device), _joined("q", parts).to(device)


def _joined(kind: str, parts: "Sequence[array[int]] | Sequence[array[float]]") -> torch.Tensor:
    """Arrays of one kind, "q" for int64 and "d" for float64, one after the other."""
    buffer = bytearray().join(parts)
    dtype = torch.int64 if kind == "q" else torch.float64
    return torch.frombuffer(buffer, dtype=dtype) if buffer else torch.empty(0, dtype=dtype)
