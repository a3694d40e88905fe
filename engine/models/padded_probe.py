"""Proof at load time that the padded lane computes what the plain model computes.

A prompt is started and extended token by token, and its logits must agree with one forward over
all of it. Where a family's own cache falls short of that, they must agree with `generate`, which
is what the lane stands for. Then sequences of several lengths are extended together, and if
those logits agree too, the lane batches.
"""

import torch

from engine.errors import UnsupportedModel
from engine.models.cache_rows import CacheRows, gather_rows
from engine.models.padded import PaddedModel, State
from engine.models.probe import TOLERANCE

PROBE_LENGTH = 12
BATCH_LENGTHS = (9, 2, 5)
BATCH_STEPS = 3


@torch.inference_mode()
def probe_padded_model(model: PaddedModel) -> None:
    """Compare steps with the plain model, and set `model.batches` and `model.replays`.

    Raises:
        UnsupportedModel: a token depends on later ones, or the steps are not those of `generate`.
    """
    length = min(PROBE_LENGTH, model.max_model_len)
    token_ids = [(7 * i + 3) % model.vocab_size for i in range(length)]
    half = max(1, length // 2)
    whole = model.plain_logits(token_ids)
    if not _agree(model.plain_logits(token_ids[:half]), whole[:half]):
        raise UnsupportedModel(
            f"{model.name} looks at later tokens, so it isn't a causal language model (set "
            "is_decoder in config.json if it should be); choose another model."
        )
    if not _agree(_stepped(model, token_ids, half), whole[half - 1 :]):
        generated, logits = model.generated(token_ids[:half], length - half)
        if not _agree(_stepped(model, generated[:-1], half), logits):
            raise UnsupportedModel(
                f"{model.name} gives other logits step by step than in transformers' generate, so "
                "its results could not be trusted; choose another model or report this one."
            )
        model.replays = True
    elif model.may_batch(model.start(token_ids)[1]):
        model.batches = _batches_as_one_by_one(model)


def _stepped(model: PaddedModel, token_ids: list[int], start: int) -> torch.Tensor:
    """[steps, vocab]: after the first `start` tokens, then after each one more."""
    logits, state = model.start(token_ids[:start])
    steps = [logits]
    for length in range(start + 1, len(token_ids) + 1):
        rows, state = model.extend([token_ids[:length]], state)
        steps.append(rows[0])
    return torch.stack(steps)


def _agree(logits: torch.Tensor, plain: torch.Tensor) -> bool:
    # Written so that NaN on either side counts as a disagreement.
    limit = TOLERANCE[plain.dtype] * plain.abs().max()
    return bool((logits - plain).abs().max() <= limit)


def _batches_as_one_by_one(model: PaddedModel) -> bool:
    if model.max_model_len < max(BATCH_LENGTHS) + BATCH_STEPS:
        return False
    sequences = [
        [(5 * i + 11 * row + 2) % model.vocab_size for i in range(length + BATCH_STEPS)]
        for row, length in enumerate(BATCH_LENGTHS)
    ]
    try:
        return _agree(_extended(model, sequences, True), _extended(model, sequences, False))
    # Foreign code may well not expect padding: then there is none.
    except Exception:
        return False


def _extended(model: PaddedModel, sequences: list[list[int]], together: bool) -> torch.Tensor:
    """[steps, rows, vocab]: the logits of the last tokens of each sequence."""
    lengths = list(BATCH_LENGTHS)
    states = [model.start(ids[:n])[1] for ids, n in zip(sequences, lengths, strict=True)]
    if together:
        parts = [CacheRows(state["cache"], [0]) for state in states]
        states = [{"cache": gather_rows(parts, max(lengths))}]
    steps = []
    for _ in range(BATCH_STEPS):
        lengths = [n + 1 for n in lengths]
        known = [ids[:n] for ids, n in zip(sequences, lengths, strict=True)]
        steps.append(_step(model, known, states))
    return torch.stack(steps)


def _step(model: PaddedModel, known: list[list[int]], states: list[State]) -> torch.Tensor:
    """[rows, vocab]; the states are replaced by the new ones."""
    groups = [known] if len(states) == 1 else [[ids] for ids in known]
    logits = []
    for index, group in enumerate(groups):
        rows, states[index] = model.extend(group, states[index])
        logits.append(rows)
    return torch.cat(logits)
