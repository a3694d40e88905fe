"""Prompt lookup: what is proposed, and what is learned of it."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.proposer import LONGEST, PRIOR, SHORTEST, NgramProposer


def propose(token_ids: list[int], count: int = 7) -> list[int]:
    return NgramProposer().propose(token_ids, count)


def naive(token_ids: list[int], count: int) -> list[int]:
    """The same, by the words of the docstring."""
    known = list(token_ids)
    for length in range(LONGEST, SHORTEST - 1, -1):
        wanted = known[-length:]
        for start in range(len(known) - length - 1, -1, -1):
            if known[start : start + length] == wanted:
                for place in range(start + length, start + length + count):
                    known.append(known[place])
                return known[len(token_ids) :]
    return []


@pytest.mark.parametrize("period", [1, 2, 5])
def test_a_loop_of_any_period_is_continued(period: int) -> None:
    loop = [100 + i for i in range(period)]
    known = [1, 2, 3, *(loop * 3)]
    assert propose(known, 12) == (loop * 12)[:12]


def test_what_followed_before_is_proposed_and_no_more_than_asked_for() -> None:
    known = [5, 6, 7, 8, 9, 10, 11, 1, 2, 5, 6, 7]
    assert propose(known, 3) == [8, 9, 10]
    assert propose(known, 1) == [8]


def test_a_proposal_that_reaches_the_end_goes_on_with_itself() -> None:
    assert propose([1, 2, 3, 1, 2], 8) == [3, 1, 2, 3, 1, 2, 3, 1]


def test_the_longest_match_wins_over_a_newer_one() -> None:
    four, three, two = [1, 2, 3, 4, 50], [9, 2, 3, 4, 60], [9, 9, 3, 4, 70]
    tail = [1, 2, 3, 4]
    assert propose([*four, *three, *two, *tail], 1) == [50]
    assert propose([*three, *two, *tail], 1) == [60]
    assert propose([*two, *tail], 1) == [70]
    assert propose([9, 9, 9, 4, 80, *tail], 1) == []


def test_of_equally_long_matches_the_newest_wins() -> None:
    assert propose([1, 2, 3, 4, 50, 1, 2, 3, 4, 60, 1, 2, 3, 4], 1) == [60]


@pytest.mark.parametrize("known", [[], [7], [7, 8], [1, 2, 3, 4, 5, 6]])
def test_nothing_is_proposed_of_what_never_occurred(known: list[int]) -> None:
    assert propose(known) == []


def test_bytes_that_match_across_tokens_are_no_match() -> None:
    wanted = array("i", [0x04030201, 0x08070605])
    across = array("i", b"\0" + wanted.tobytes() + b"\0\0\0")
    assert len(across) == 3
    assert propose([*across, 99, *wanted]) == []
    # One before it that lies right is found all the same.
    assert propose([*wanted, 42, *across, 99, *wanted], 1) == [42]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 9))
def test_it_equals_a_naive_search(known: list[int], count: int) -> None:
    assert propose(known, count) == naive(known, count)


@given(st.lists(st.sampled_from([0, 1, 256, 65_536, 257, 16_777_216]), max_size=40))
def test_it_equals_a_naive_search_over_ids_whose_bytes_look_alike(known: list[int]) -> None:
    assert propose(known, 5) == naive(known, 5)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.data())
def test_what_was_known_before_makes_no_difference(known: list[int], data: st.DataObject) -> None:
    proposer = NgramProposer()
    for end in sorted(data.draw(st.sets(st.integers(0, len(known)), max_size=5))):
        proposer.propose(known[:end], 3)
    assert proposer.propose(known, 3) == propose(known, 3)


def test_what_holds_raises_the_rate_and_a_failure_counts_once() -> None:
    proposer = NgramProposer()
    proposer.learn(5, 5)
    assert proposer.hold_rate == pytest.approx(1 - (1 - PRIOR) * 0.8**5)
    before = proposer.hold_rate
    proposer.learn(7, 2)  # the four behind the one that failed were never tried
    assert proposer.hold_rate == pytest.approx((1 - (1 - before) * 0.8**2) * 0.8)


def test_what_was_foreseen_is_learned_once_its_place_is_known() -> None:
    proposer = NgramProposer()
    proposer.foresee(2, 9)
    proposer.check([1, 2])
    assert proposer.hold_rate == PRIOR
    proposer.check([1, 2, 9])
    held = proposer.hold_rate
    assert held > PRIOR
    proposer.check([1, 2, 9])
    assert proposer.hold_rate == held
    proposer.foresee(3, 9)
    proposer.check([1, 2, 9, 4])
    assert proposer.hold_rate < held


def test_what_was_learned_drifts_back() -> None:
    proposer = NgramProposer()
    proposer.learn(7, 0)
    low = proposer.hold_rate
    proposer.drift()
    assert low < proposer.hold_rate < PRIOR
    for _ in range(500):
        proposer.drift()
    assert proposer.hold_rate == pytest.approx(PRIOR, abs=1e-3)
