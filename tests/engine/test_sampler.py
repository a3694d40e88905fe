"""The sampler: greedy ties, noise that batching can't change, and the top-k/top-p distribution."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampler import sample
from engine.sampling_params import SamplingParams


def params(temperature: float = 1.0, **fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=1, temperature=temperature, **fields)  # type: ignore[arg-type]


def oracle_distribution(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> np.ndarray:
    """Temperature, then top-k, then top-p over what is left, written the slow and plain way."""
    scaled = logits.astype(np.float64) / temperature
    order = sorted(range(len(scaled)), key=lambda i: -scaled[i])
    if top_k:
        order = order[:top_k]
    weights = np.exp(scaled[order] - scaled[order[0]])
    weights /= weights.sum()
    kept, mass = [], 0.0
    for token_id, weight in zip(order, weights, strict=True):
        kept.append((token_id, weight))
        mass += weight
        if mass >= top_p:
            break
    result = np.zeros(len(scaled))
    for token_id, weight in kept:
        result[token_id] = weight / mass
    return result


def draws(logits: torch.Tensor, options: SamplingParams, count: int) -> np.ndarray:
    """Frequencies over `count` output positions of one request."""
    rows = logits.expand(count, -1)
    tokens = sample(rows, [options] * count, list(range(count)))
    return np.bincount(tokens.numpy(), minlength=logits.shape[0]) / count


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0]])
    assert sample(logits, [params(0.0), params(1e-6)], [0, 0]).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 5, 1.0), (1.3, 0, 0.8), (0.9, 6, 0.7), (1.0, 1, 1.0)],
)
def test_frequencies_match_the_oracle(temperature: float, top_k: int, top_p: float) -> None:
    logits = torch.randn(12, generator=torch.Generator().manual_seed(5)) * 1.5
    expected = oracle_distribution(logits.numpy(), temperature, top_k, top_p)
    count = 40_000
    seen = draws(logits, params(temperature, top_k=top_k, top_p=top_p, seed=11), count)
    assert (seen[expected == 0] == 0).all()
    deviation = np.sqrt(expected * (1 - expected) / count)
    assert (np.abs(seen - expected) <= 5 * deviation + 1e-9).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), top_k=st.integers(0, 40), top_p=st.floats(0.05, 1.0))
def test_only_tokens_of_the_oracle_are_drawn(seed: int, top_k: int, top_p: float) -> None:
    logits = torch.randn(30, generator=torch.Generator().manual_seed(seed)) * 2
    allowed = oracle_distribution(logits.numpy(), 1.0, top_k, top_p + 1e-5) > 0
    seen = draws(logits, params(1.0, top_k=top_k, top_p=top_p, seed=seed), 300)
    assert not seen[~allowed].any()


def test_top_p_wider_than_the_candidates_falls_back_to_a_full_sort() -> None:
    logits = torch.zeros(5000)
    logits[:2500] = 1.0
    share = np.e / (np.e + 1)
    seen = draws(logits, params(1.0, top_p=share - 0.01, seed=3), 4000)
    assert not seen[2500:].any()
    assert np.count_nonzero(seen[:2500]) > 1500


def test_rows_sample_the_same_alone_and_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(24, 200, generator=generator)
    kinds = [
        params(0.0),
        params(1.0, seed=5),
        params(0.8, top_k=9, seed=6),
        params(1.2, top_p=0.6, seed=7),
    ]
    options = [kinds[i % 4] for i in range(24)]
    positions = [i // 4 for i in range(24)]
    together = sample(logits, options, positions).tolist()
    alone = [sample(logits[i : i + 1], [options[i]], [positions[i]]).item() for i in range(24)]
    order = list(reversed(range(24)))
    backwards = sample(
        logits[order], [options[i] for i in order], [positions[i] for i in order]
    ).tolist()
    assert together == alone
    assert together == backwards[::-1]


def test_large_batches_are_sampled_in_groups_without_changing_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(4))
    options, positions = [params(1.0, seed=i) for i in range(7)], [0] * 7
    expected = sample(logits, options, positions).tolist()
    monkeypatch.setattr("engine.sampler.MAX_NOISE_ELEMENTS", 100)
    assert sample(logits, options, positions).tolist() == expected


def test_seed_and_position_both_change_the_noise() -> None:
    logits = torch.zeros(1, 100_000)
    tokens = {
        sample(logits, [params(1.0, seed=seed)], [position]).item()
        for seed in (0, 1, -1, 2**63)
        for position in (0, 1, 2)
    }
    assert len(tokens) == 12


def test_seeds_of_any_size_are_taken_modulo_two_to_the_64() -> None:
    logits = torch.zeros(2, 100_000)
    small, large = sample(logits, [params(1.0, seed=5), params(1.0, seed=2**64 + 5)], [0, 0])
    assert small == large


def test_sampled_tokens_are_pinned() -> None:
    """A change of the noise would silently change every seeded rerun."""
    tokens = sample(torch.zeros(4, 1000), [params(1.0, seed=42)] * 4, [0, 1, 2, 3])
    assert tokens.tolist() == [282, 673, 394, 10]


def test_nan_row_leaves_the_other_rows_alone() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(9))
    options = [params(1.0, top_k=5, seed=1)] * 3
    expected = sample(logits, options, [0, 1, 2]).tolist()
    logits[1] = float("nan")
    tokens = sample(logits, options, [0, 1, 2]).tolist()
    assert [tokens[0], tokens[2]] == [expected[0], expected[2]]
