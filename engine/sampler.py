"""From logits to tokens: greedy, or seeded sampling that no batching can change.

The noise of a token depends only on the request's seed, the output position and the token id, so
a line samples the same in any batch, after a preemption and after a restart. Order of operations:
temperature, min-p, top-k, top-p; a request's edits of its logits (`engine.logits`) come before.
"""

import math

import torch

from engine.sampling_params import SamplingParams

MASK_64 = (1 << 64) - 1
# SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014):
# the increment and the two multipliers of its finaliser.
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB

MAX_NOISE_ELEMENTS = 1 << 23
"""Rows are sampled in groups, so that the 64-bit hashes take at most 64 MiB."""
TOP_P_CANDIDATES = 1024
"""Largest logits looked at before a full sort; they nearly always hold the top-p mass."""


def sample(
    logits: torch.Tensor, params: list[SamplingParams], positions: list[int]
) -> torch.Tensor:
    """Choose one token per row.

    Args:
        logits: [rows, vocab].
        params: of each row.
        positions: output position of each row's token, 0 for the first.

    Returns:
        [rows] token ids. The lowest id wins a tie.
    """
    logits = logits.float()
    tokens = logits.argmax(-1)
    random_rows = [i for i, p in enumerate(params) if not p.is_greedy]
    group = max(1, MAX_NOISE_ELEMENTS // logits.shape[1])
    for start in range(0, len(random_rows), group):
        rows = random_rows[start : start + group]
        index = torch.tensor(rows, device=logits.device)
        tokens[index] = _draw(
            logits[index],
            [params[i] for i in rows],
            [_row_key(params[i].seed, positions[i]) for i in rows],
        )
    return tokens


def _draw(logits: torch.Tensor, params: list[SamplingParams], keys: list[int]) -> torch.Tensor:
    """Sample each row of [rows, vocab] by the Gumbel-max trick; returns [rows]."""
    device = logits.device
    scores = logits / torch.tensor([p.temperature for p in params], device=device)[:, None]
    key_column = torch.tensor(keys, device=device)[:, None]
    top_k = [p.top_k for p in params]
    top_p = [float(p.top_p) for p in params]
    min_p = [p.min_p for p in params]
    if not any(top_k) and not any(min_p) and all(p == 1 for p in top_p):
        ids = torch.arange(scores.shape[1], device=device)[None]
        return (scores + _gumbel(key_column, ids)).argmax(-1)
    if any(min_p):
        _cut_below(scores, _min_p_floor(scores, min_p))
    if any(top_k):
        _cut_below(scores, _top_k_floor(scores, top_k))
    if any(p < 1 for p in top_p):
        _cut_below(scores, _top_p_floor(scores, torch.tensor(top_p, device=device)))
    # Noise only for the few tokens that are left.
    rows, ids = scores.isfinite().nonzero(as_tuple=True)
    scores[rows, ids] += _gumbel(key_column[rows, 0], ids)
    return scores.argmax(-1)


def _cut_below(scores: torch.Tensor, floor: torch.Tensor) -> None:
    scores.masked_fill_(scores < floor[:, None], float("-inf"))


def _min_p_floor(scores: torch.Tensor, min_p: list[float]) -> torch.Tensor:
    """[rows]: the score of a token that is `min_p` times as likely as the row's likeliest."""
    distance = [math.log(p) if p else -math.inf for p in min_p]
    return scores.amax(-1) + torch.tensor(distance, device=scores.device)


def _top_k_floor(scores: torch.Tensor, top_k: list[int]) -> torch.Tensor:
    """[rows]: the smallest score each row keeps; equal scores are all kept."""
    vocab = scores.shape[1]
    counts = torch.tensor([min(k, vocab) for k in top_k], device=scores.device)
    largest = scores.topk(int(counts.max()), dim=-1).values
    floor = largest.gather(1, (counts - 1).clamp(min=0)[:, None])[:, 0]
    return floor.masked_fill(counts == 0, float("-inf"))


def _top_p_floor(scores: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """[rows]: the score of the token with which each row's probability reaches `top_p`."""
    vocab = scores.shape[1]
    total = scores.logsumexp(-1, keepdim=True)
    floor = torch.full_like(top_p, float("-inf"))
    pending = (top_p < 1).nonzero()[:, 0]
    for width in sorted({min(TOP_P_CANDIDATES, vocab), vocab}):
        if not len(pending):
            break
        largest = scores[pending].topk(width, dim=-1).values
        mass = (largest - total[pending]).exp().cumsum(-1)
        wanted = top_p[pending, None]
        last = (mass < wanted).sum(-1, keepdim=True).clamp(max=width - 1)
        floor[pending] = largest.gather(1, last)[:, 0]
        pending = pending[mass[:, -1] < wanted[:, 0]]
    return floor


def _gumbel(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise for broadcast (key, token id) pairs, int64 each."""
    bits = _mix(keys + ids * _signed(GOLDEN))
    uniform = ((bits >> 33) & 0x7FFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-31)
    # The winner has the smallest exponential variate, so small ones need the finest steps:
    # float32 is finest near 0. Rounding to 1 would make the noise infinite.
    exponential = uniform.clamp_(max=1 - 2.0**-24).neg_().log1p_().neg_()
    return exponential.log_().neg_()


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser on int64, whose products wrap like unsigned ones."""
    bits = (bits ^ ((bits >> 30) & ((1 << 34) - 1))) * _signed(MIX_1)
    bits = (bits ^ ((bits >> 27) & ((1 << 37) - 1))) * _signed(MIX_2)
    return bits ^ ((bits >> 31) & ((1 << 33) - 1))


def _row_key(seed: int, position: int) -> int:
    """A signed 64-bit key for one output position of one request."""
    return _signed(_mix_int(_mix_int(seed) + position))


def _mix_int(bits: int) -> int:
    bits = (bits + GOLDEN) & MASK_64
    bits = ((bits ^ (bits >> 30)) * MIX_1) & MASK_64
    bits = ((bits ^ (bits >> 27)) * MIX_2) & MASK_64
    return bits ^ (bits >> 31)


def _signed(bits: int) -> int:
    """The same 64 bits as a two's complement number."""
    return bits - (1 << 64) if bits >> 63 else bits
