"""Cutting a file into lines and checking one: every code of the contract, every byte in place."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workshop import CHAT, make_item

from runner.domain.lines import MAX_CUSTOM_ID, LineError, RawLine, parse_line, split_lines

BOM = b"\xef\xbb\xbf"
LIMIT = 64
FIELDS = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m"}}


def pieces_of(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """Data in pieces that end at the given places."""
    start = 0
    for cut in sorted({min(cut, len(data)) for cut in cuts}):
        yield data[start:cut]
        start = cut
    yield data[start:]


def expected_lines(data: bytes) -> list[tuple[int, int, bytes]]:
    """Number, offset and bytes of each non-blank line, found without any streaming."""
    found, offset = [], 0
    for number, line in enumerate(data.split(b"\n"), 1):
        start, end = offset, offset + len(line)
        offset = end + 1
        if number == 1 and line.startswith(BOM):
            start += len(BOM)
        if data[start:end].endswith(b"\r"):
            end -= 1
        if data[start:end].strip() or end - start > LIMIT:
            found.append((number, start, data[start:end]))
    return found


def split(data: bytes, limit: int = 1000) -> list[RawLine]:
    return list(split_lines([data], limit))


def body_with(body: bytes) -> bytes:
    return b'{"custom_id":"a","method":"POST","url":"%b","body":%b}' % (CHAT.encode(), body)


def fault_of(data: bytes, limit: int = 10_000) -> tuple[str, str | None]:
    with pytest.raises(LineError) as caught:
        parse_line(data, CHAT, limit)
    assert caught.value.message.endswith((".", "'"))
    return caught.value.code, caught.value.param


LINES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [b"", b" ", b"\r", b"\t\r", b"x\r", b"\r\r", b"\x0c", b"\xe2\x80\xa8", BOM]
        ),
        st.integers(0, 3 * LIMIT).map(lambda size: b"y" * size),
        st.integers(LIMIT - 5, LIMIT + 5).map(lambda size: b" " * size + b"z"),
        st.integers(LIMIT - 5, LIMIT + 5).map(lambda size: b"w" * size + b"\r"),
    ),
    max_size=8,
)


@given(LINES, st.booleans(), st.lists(st.integers(0, 600), max_size=12))
def test_each_line_lies_where_it_is_said_to_lie_for_any_chunking(
    lines: list[bytes], bom: bool, cuts: list[int]
) -> None:
    data = (BOM if bom else b"") + b"\n".join(lines)
    cut = list(split_lines(pieces_of(data, cuts), LIMIT))
    expected = expected_lines(data)
    assert [(line.number, line.offset) for line in cut] == [
        (number, offset) for number, offset, _ in expected
    ]
    for line, (_, offset, whole) in zip(cut, expected, strict=True):
        if len(whole) <= LIMIT:
            assert line.data == whole == data[offset : offset + len(line.data)]
        else:
            assert len(line.data) > LIMIT


def test_blank_lines_are_skipped_but_keep_their_numbers() -> None:
    assert [(line.number, line.data) for line in split(b"\n a\n\n \t\r\nb")] == [
        (2, b" a"),
        (5, b"b"),
    ]


def test_a_byte_order_mark_and_carriage_returns_are_no_part_of_a_line() -> None:
    lines = split(BOM + b"a\r\nb\r\n")
    assert [(line.offset, line.data) for line in lines] == [(3, b"a"), (6, b"b")]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0c", "\x1e"])
def test_only_a_newline_ends_a_line(separator: str) -> None:
    data = f"a{separator}b\n".encode()
    assert [line.data for line in split(data)] == [data[:-1]]


@pytest.mark.parametrize("size", [LIMIT + 1, LIMIT + 2, 5 * LIMIT])
@pytest.mark.parametrize("fill", [b" ", b"\r", b"x"])
def test_a_long_line_is_neither_shortened_nor_taken_for_a_blank_one(size: int, fill: bytes) -> None:
    data = fill * size + b"{}\n"
    for step in (1, 7, len(data)):
        pieces = [data[at : at + step] for at in range(0, len(data), step)]
        (line,) = split_lines(pieces, LIMIT)
        assert fault_of(line.data, LIMIT)[0] == "line_too_long"


def test_a_line_of_any_length_is_held_only_up_to_the_limit() -> None:
    def pieces() -> Iterator[bytes]:
        yield from (b"x" * 1000 for _ in range(100))
        yield b"\nnext"

    long, after = split_lines(pieces(), LIMIT)
    assert len(long.data) < 1200
    assert (after.number, after.offset, after.data) == (2, 100_001, b"next")


def test_a_good_line_tells_its_id_model_and_prompt() -> None:
    parsed = parse_line(make_item("é 1", "Grüße\n\0"), CHAT, 1000)
    assert (parsed.custom_id, parsed.model) == ("é 1", "org/stub")
    assert json.loads(parsed.prompt) == [{"role": "user", "content": "Grüße\n\0"}]


def test_unknown_keys_of_the_envelope_are_tolerated() -> None:
    assert parse_line(json.dumps({**FIELDS, "note": [1]}).encode(), CHAT, 1000).model == "m"


def test_a_completions_prompt_is_found_too() -> None:
    url = "/v1/completions"
    line = {**FIELDS, "url": url, "body": {"model": "m", "prompt": "Once"}}
    assert parse_line(json.dumps(line).encode(), url, 1000).prompt == b'"Once"'


@pytest.mark.parametrize(
    "data",
    [
        b"not json",
        b"[]",
        b"7",
        b"null",
        b'"text"',
        b"{}{}",
        b"{",
        b"\xff",
        b"\x00",
        json.dumps(FIELDS).encode("utf-16"),
        json.dumps(FIELDS).encode("utf-32"),
        BOM + json.dumps(FIELDS).encode(),  # only the file's first line may have a mark
        body_with(b'{"model":"m","temperature":NaN}'),
        body_with(b'{"model":"m","temperature":-Infinity}'),
        body_with(b'{"model":"m"'),
        body_with(b'{"model":"m","x":"\x01"}'),
        body_with(b'{"model":"\xff"}'),
        body_with(b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}'),
        body_with(b'{"model":"m","messages":[{"role":"user","content":"\xed\xa0\x80"}]}'),
        body_with(b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}'),
        body_with(b'{"model":"m","x":' + b"[" * 1_500 + b"]" * 1_500 + b"}"),
        body_with(b'{"model":"m","x":' + b'{"y":' * 1_500 + b"1" + b"}" * 1_500 + b"}"),
        b'{"custom_id":"\\ud800"}',
        b"[" * 9_000,
    ],
)
def test_what_is_not_one_json_object_in_utf8_is_refused(data: bytes) -> None:
    assert fault_of(data)[0] == "invalid_json_line"


@pytest.mark.parametrize("name", ["custom_id", "method", "url", "body"])
def test_a_missing_field_is_named(name: str) -> None:
    line = {key: value for key, value in FIELDS.items() if key != name}
    assert fault_of(json.dumps(line).encode()) == ("missing_required_parameter", name)


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"custom_id": 7}, "invalid_type", "custom_id"),
        ({"custom_id": None}, "invalid_type", "custom_id"),
        ({"custom_id": ""}, "invalid_request", "custom_id"),
        ({"custom_id": "a\0"}, "invalid_request", "custom_id"),
        ({"custom_id": "a\nb"}, "invalid_request", "custom_id"),
        ({"custom_id": "\u202eabc"}, "invalid_request", "custom_id"),
        ({"custom_id": "x" * (MAX_CUSTOM_ID + 1)}, "invalid_request", "custom_id"),
        ({"method": "GET"}, "invalid_request", "method"),
        ({"method": 7}, "invalid_request", "method"),
        ({"url": 7}, "invalid_type", "url"),
        ({"url": "/v1/completions"}, "url_mismatch", "url"),
        ({"url": "/v1/nothing"}, "invalid_url", "url"),
        ({"body": 7}, "invalid_type", "body"),
        ({"body": "text"}, "invalid_type", "body"),
        ({"body": [1]}, "invalid_type", "body"),
        ({"body": {}}, "missing_required_parameter", "body.model"),
        ({"body": {"model": 7}}, "invalid_type", "body.model"),
        ({"body": {"model": None}}, "invalid_type", "body.model"),
        ({"body": {"model": "m", "stream": 1}}, "invalid_type", "body.stream"),
        ({"body": {"model": "m", "stream": True}}, "streaming_unsupported", "body.stream"),
    ],
)
def test_a_fault_has_the_code_and_param_of_the_contract(
    changes: dict[str, object], code: str, param: str
) -> None:
    assert fault_of(json.dumps({**FIELDS, **changes}).encode()) == (code, param)


def test_the_longest_custom_id_is_accepted() -> None:
    line = {**FIELDS, "custom_id": "ü" * MAX_CUSTOM_ID}
    assert parse_line(json.dumps(line).encode(), CHAT, 10_000).custom_id == "ü" * MAX_CUSTOM_ID


def test_a_line_may_have_exactly_the_limit() -> None:
    data = make_item("a")
    assert parse_line(data, CHAT, len(data)).custom_id == "a"
    assert fault_of(data, len(data) - 1)[0] == "line_too_long"


@given(st.binary(max_size=80))
def test_no_bytes_get_past_the_parser_but_as_a_line_or_a_fault(data: bytes) -> None:
    with pytest.raises(LineError):
        parse_line(data, CHAT, 1000)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_what_is_printable_makes_a_custom_id(text: str) -> None:
    data = make_item(text)
    if text and text.isprintable():
        assert parse_line(data, CHAT, 10_000).custom_id == text
    else:
        assert fault_of(data) == ("invalid_request", "custom_id")
