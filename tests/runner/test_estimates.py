"""Estimates of real files and jobs on real Postgres."""

import pytest
from workshop import CHAT, Workshop, make_item, make_items

from runner.domain.errors import NotFound
from runner.domain.estimate import Basis, Estimate
from runner.services.estimates import Order, quick


def glance(workshop: Workshop, lines: object, endpoint: str = CHAT) -> Estimate | None:
    file_id = workshop.make_file(lines)  # type: ignore[arg-type]
    with workshop.sessions() as session:
        return quick(session, Order(workshop.caller.project_id, file_id, endpoint))


def test_a_glance_at_a_small_file_sees_all_of_it(workshop: Workshop) -> None:
    told = glance(workshop, [make_item(f"line-{n}", max_tokens=5) for n in range(20)])
    assert told is not None
    assert (told.lines, told.output_most, told.basis) == (20, 100, Basis.MAX_TOKENS)
    assert 0 < told.input_tokens < told.input_most
    assert 0 < told.billed.likely <= told.billed_most
    assert not told.is_exact


def test_a_glance_at_a_large_file_goes_on_as_it_began(workshop: Workshop) -> None:
    lines = [make_item(f"line-{n:05}", "word " * 100, max_tokens=3) for n in range(5000)]
    told = glance(workshop, lines)
    assert told is not None
    assert abs(told.lines - 5000) <= 2
    assert abs(told.output_most - 15_000) <= 6


def test_lines_that_cannot_run_are_not_counted(workshop: Workshop) -> None:
    told = glance(workshop, [b"{", *make_items(2), b"[]"])
    assert told is not None
    assert told.lines == 2


@pytest.mark.parametrize("lines", [b"", [b"{"], [make_item("a", model="org/none")]])
def test_a_file_of_which_nothing_can_run_has_no_estimate(workshop: Workshop, lines: object) -> None:
    assert glance(workshop, lines) is None


def test_a_file_of_another_project_has_no_estimate(workshop: Workshop) -> None:
    file_id = workshop.make_file(make_items(1), workshop.make_caller("other"))
    with workshop.sessions() as session, pytest.raises(NotFound):
        quick(session, Order(workshop.caller.project_id, file_id, CHAT))
