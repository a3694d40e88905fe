"""The legal moves of a job."""

from runner.domain.states import (
    LIVE_JOB_STATES,
    MOVES,
    TERMINAL_JOB_STATES,
    JobState,
)


def test_the_terminal_states_are_those_of_the_contract() -> None:
    assert set(TERMINAL_JOB_STATES) == {
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.EXPIRED,
        JobState.CANCELLED,
    }
    assert set(LIVE_JOB_STATES) | set(TERMINAL_JOB_STATES) == set(JobState)


def test_nothing_leaves_a_terminal_state() -> None:
    assert all(not MOVES[state] for state in TERMINAL_JOB_STATES)


def test_every_state_has_its_moves_written_down() -> None:
    assert set(MOVES) == set(JobState)


def test_every_state_can_reach_an_end() -> None:
    for state in LIVE_JOB_STATES:
        reached, edge = {state}, {state}
        while edge:
            edge = {after for each in edge for after in MOVES[each]} - reached
            reached |= edge
        assert reached & set(TERMINAL_JOB_STATES), state


def test_a_live_job_can_be_cancelled_unless_it_is_already() -> None:
    for state in LIVE_JOB_STATES:
        if state is not JobState.CANCELLING:
            assert JobState.CANCELLING in MOVES[state]
