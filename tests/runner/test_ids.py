"""Identifiers: reversible, ordered by time, and strict."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.domain.ids import (
    ITEM_PREFIX,
    JOB_PREFIX,
    decode,
    encode,
    first_uuid_at,
    item_id,
    new_uuid,
)


@given(st.uuids())
def test_an_id_is_read_back_as_it_was_written(value: UUID) -> None:
    text = encode(JOB_PREFIX, value)
    assert len(text) == len(JOB_PREFIX) + 26
    assert decode(JOB_PREFIX, text) == value


@given(st.uuids(), st.uuids())
def test_outer_ids_sort_like_the_uuids(one: UUID, other: UUID) -> None:
    assert (encode("", one) < encode("", other)) == (one < other)


@given(st.text(max_size=40))
def test_any_other_text_is_no_id(text: str) -> None:
    value = decode(JOB_PREFIX, text)
    assert value is None or encode(JOB_PREFIX, value) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "batch_",
        "batch_" + "0" * 25,
        "batch_" + "0" * 27,
        "batch_" + "z" * 26,  # more than 128 bits
        "batch_" + "u" * 26,  # not in the alphabet
        "BATCH_" + "0" * 26,
        "file-" + "0" * 26,
        "batch_" + "0" * 25 + "٣",
    ],
)
def test_what_cannot_be_an_id_is_none(text: str) -> None:
    assert decode(JOB_PREFIX, text) is None


def test_later_ids_are_greater() -> None:
    made = [new_uuid() for _ in range(1000)]
    assert made == sorted(made)
    assert len(set(made)) == 1000


def test_an_id_lies_between_the_bounds_of_its_moment() -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    value = new_uuid()
    after = datetime.now(UTC) + timedelta(milliseconds=2)
    assert first_uuid_at(before) < value < first_uuid_at(after)


def test_a_lines_id_names_its_job_and_number() -> None:
    job_id = new_uuid()
    assert item_id(job_id, 7) == f"{ITEM_PREFIX}{encode('', job_id)}_7"
