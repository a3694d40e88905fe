"""What one pass over a file gathers."""

import time

import pytest
from workshop import CHAT, make_item

from runner.domain.ids import ModelId, new_uuid
from runner.domain.intake import FAULTS_KEPT, Accepted, Intake, LineFault, Refused
from runner.domain.lines import RawLine, split_lines

MODELS = {"org/stub": ModelId(new_uuid()), "org/other": ModelId(new_uuid())}


@pytest.fixture
def intake() -> Intake:
    return Intake(CHAT, 10_000, MODELS.get)


def read(intake: Intake, lines: list[bytes]) -> list[Accepted | Refused]:
    return [intake.read(line) for line in split_lines([b"\n".join(lines)], 10_000)]


def duplicates(intake: Intake) -> list[tuple[int, LineFault]]:
    return list(intake.duplicates())


def test_lines_are_numbered_without_the_blank_ones(intake: Intake) -> None:
    first, second = read(intake, [b"", make_item("a"), b"", make_item("b")])
    assert isinstance(first, Accepted)
    assert isinstance(second, Accepted)
    assert (first.idx, first.custom_id, first.offset, first.length) == (
        0,
        "a",
        1,
        len(make_item("a")),
    )
    assert (second.idx, second.custom_id) == (1, "b")
    assert second.offset == 3 + len(make_item("a"))


def test_a_repeated_custom_id_names_the_first_line_that_had_it(intake: Intake) -> None:
    ids = ["a", "b", "a", "c", "b", "a"]
    read(intake, [b"", *(make_item(each) for each in ids)])
    found = duplicates(intake)
    assert sorted(idx for idx, _ in found) == [2, 4, 5]
    lines = {fault.line: fault for _, fault in found}
    assert {line: fault.code for line, fault in lines.items()} == dict.fromkeys(
        (4, 6, 7), "duplicate_custom_id"
    )
    assert "line 2." in lines[4].message
    assert "line 3." in lines[6].message
    assert "line 2." in lines[7].message
    assert intake.fault_count == 3
    assert [fault.line for fault in intake.faults] == [4, 6, 7]


def test_a_duplicate_is_in_no_shard(intake: Intake) -> None:
    read(intake, [make_item(each) for each in ("a", "b", "a", "c")])
    duplicates(intake)
    assert [shard.idx for shard in intake.shards(2)] == [[0, 1], [3]]


def test_many_equal_ids_are_found_in_one_pass(intake: Intake) -> None:
    line = RawLine(1, 0, make_item("same"))
    for _ in range(50_000):
        intake.read(line)
    started = time.process_time()
    found = sum(1 for _ in intake.duplicates())
    assert found == intake.fault_count == 49_999
    assert len(intake.faults) == FAULTS_KEPT
    assert time.process_time() - started < 10


def test_faults_are_kept_up_to_a_thousand_and_counted_beyond(intake: Intake) -> None:
    read(intake, [b"x"] * (FAULTS_KEPT + 5))
    assert len(intake.faults) == FAULTS_KEPT
    assert intake.fault_count == FAULTS_KEPT + 5
    assert intake.faults[-1].line == FAULTS_KEPT


def test_lines_of_several_models_come_into_shards_of_one_each(intake: Intake) -> None:
    named = ["org/none", "org/stub", "org/other", "org/stub", "org/other", "org/stub"]
    outcomes = read(intake, [make_item(f"{n}", model=name) for n, name in enumerate(named)])
    assert [type(outcome) for outcome in outcomes] == [Refused, *[Accepted] * 5]
    assert [fault.code for fault in intake.faults] == ["model_not_found"]
    duplicates(intake)
    assert [(shard.shard_no, shard.model_id, shard.idx) for shard in intake.shards(2)] == [
        (0, MODELS["org/stub"], [1, 3]),
        (1, MODELS["org/stub"], [5]),
        (2, MODELS["org/other"], [2, 4]),
    ]


@pytest.mark.parametrize(
    ("line", "custom_id", "code"),
    [
        (make_item("a", model="org/none"), "a", "model_not_found"),
        (make_item("a", stream=True), "a", "streaming_unsupported"),
        (make_item("a").replace(b'"model"', b'"name"'), "a", "missing_required_parameter"),
        (make_item("a").replace(b"chat/", b"chats/"), "a", "invalid_url"),
        (make_item("a").replace(b"POST", b"GET"), "a", "invalid_request"),
        (b'{"custom_id": "a", "body": 7}', "a", "missing_required_parameter"),
        (make_item("a", seed=2**64), "a", "invalid_json_line"),
        (make_item("a\0", stream=True), None, "invalid_request"),
        (make_item("a").replace(b'"a"', b"7"), None, "invalid_type"),
        (b"{}", None, "missing_required_parameter"),
        (make_item("a")[:-1], None, "invalid_json_line"),
        (make_item("a", "x" * 10_000), None, "line_too_long"),
        (b"[1]", None, "invalid_json_line"),
    ],
)
def test_a_refused_line_keeps_its_custom_id_where_that_could_be_read(
    intake: Intake, line: bytes, custom_id: str | None, code: str
) -> None:
    (refused,) = read(intake, [line])
    assert isinstance(refused, Refused)
    assert (refused.custom_id, refused.fault.code) == (custom_id, code)


def test_an_empty_file_has_no_duplicates_and_no_shards(intake: Intake) -> None:
    assert read(intake, [b"", b" "]) == []
    assert duplicates(intake) == []
    assert list(intake.shards(4)) == []
    assert intake.total == 0
