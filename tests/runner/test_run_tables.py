"""Rows in and out of ``tokenmill run``: templates, cells, tables, what a JSONL line is given."""

import csv
import io
import json
import sys
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.cli.progress import Pace
from runner.domain.errors import InvalidRequest
from runner.offline.answers import RowAnswer
from runner.offline.cells import neutral
from runner.offline.output import check_output, write_lines, write_table
from runner.offline.requests import PromptOptions, open_requests
from runner.offline.table import open_table
from runner.offline.template import read_template
from runner.services.job_totals import Totals

LINE_BYTES = 1024**2


def test_a_template_puts_in_whole_columns_and_keeps_doubled_braces() -> None:
    template = read_template('{{"q": "{text}"}} by { author }', ["text", "author"])
    filled = template.fill({"text": "a {b} {0.__class__}", "author": None})
    assert filled == '{"q": "a {b} {0.__class__}"} by '


@given(st.text(), st.text())
def test_a_value_enters_a_prompt_unchanged(before: str, value: str) -> None:
    doubled = before.replace("{", "{{").replace("}", "}}")
    assert read_template(doubled + "{x}", ["x"]).fill({"x": value}) == before + value


def test_a_hole_without_a_column_is_named_with_the_columns_there_are() -> None:
    with pytest.raises(InvalidRequest, match="no column 'tezt'; it has: id, text") as caught:
        read_template("Say {tezt}", ["id", "text"])
    assert caught.value.code == "missing_column"


@pytest.mark.parametrize("text", ["a { b", "a } b", "{x"])
def test_a_single_brace_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InvalidRequest, match="a single [{}] at"):
        read_template(text, ["x"])


_formulas = st.builds(str.__add__, st.sampled_from("=+-@\t\r"), st.text())


@given(st.one_of(st.text(), _formulas))
def test_no_cell_of_text_starts_a_formula(text: str) -> None:
    cell = neutral(text)
    assert cell in (text, f"'{text}")
    assert not cell.startswith(("=", "@", "\t", "\r"))
    if cell.startswith(("+", "-")):
        float(cell)  # only a number keeps its sign in front
        assert cell.isascii()


@given(st.one_of(st.integers(), st.floats(), st.decimals(allow_nan=False, allow_infinity=False)))
def test_numbers_stay_numbers(number: int | float | Decimal) -> None:
    if number == number and abs(number) != float("inf"):
        assert neutral(number) == str(number)
        assert neutral(str(number)) == str(number)


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), max_size=5))
def test_a_csv_of_neutral_cells_reads_back_cell_by_cell(rows: list[list[str]]) -> None:
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([[neutral(cell) for cell in row] for row in rows])
    stream.seek(0)
    read = list(csv.reader(stream))
    assert read == [[neutral(cell) for cell in row] for row in rows]


def test_a_table_answers_in_the_order_of_its_rows_with_its_columns_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_bytes('\ufeffid,text\r\n1,"two\nlines"\r\n-2,=1+1\r\n'.encode())
    answers = [
        RowAnswer("-5", "stop", None, 3, 4, Decimal("0.000000001")),
        RowAnswer(None, None, "Too long. [context_length_exceeded]"),
    ]
    write_table(target, open_table(source), answers)
    with target.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0] == {
        "id": "1", "text": "two\nlines", "answer": "-5", "finish_reason": "stop", "error": "",
        "prompt_tokens": "3", "output_tokens": "4", "cost": "0.000000001",
    }  # fmt: skip
    assert (rows[1]["id"], rows[1]["text"]) == ("-2", "'=1+1")
    assert rows[1]["error"] == "Too long. [context_length_exceeded]"
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


def test_parquet_keeps_the_types_of_its_columns(tmp_path: Path) -> None:
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    table = pa.table({"n": pa.array([1, None], pa.int16()), "tags": [["a"], []]})
    pq.write_table(table, source)
    answers = [RowAnswer("x", "stop", None, 1, 2, Decimal(3)), RowAnswer(None, None, "e [c]")]
    write_table(target, open_table(source), answers)
    written = pq.read_table(target)
    assert written.select(["n", "tags"]) == table
    assert written["cost"].to_pylist() == [Decimal(3), None]
    write_table(tmp_path / "out.jsonl", open_table(source), answers)
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert first == {
        "n": 1, "tags": ["a"], "answer": "x", "finish_reason": "stop", "error": None,
        "prompt_tokens": 1, "output_tokens": 2, "cost": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"a,a\n1,2\n", "more than once"),
        (b"answer\n1\n", "which the output adds"),
        (b"a,b\n1\n", "Row 1 of in.csv has 1 cells"),
        (b"a\n\xff\n", "cannot be read as CSV"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=words):
        list(open_table(path).rows())


def test_without_pyarrow_a_parquet_file_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "runner.offline.parquet", raising=False)
    with pytest.raises(InvalidRequest, match=r"pip install 'tokenmill\[parquet\]'"):
        open_table(tmp_path / "in.parquet")


def test_a_line_without_a_model_gets_the_name_that_the_file_uses(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    nameless = '{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"x"}}'
    named = nameless.replace('{"prompt"', '{"model":"org/name","prompt"')
    path.write_text(f"{nameless}\n\nnonsense\n{named}\n")
    requests = open_requests(path, PromptOptions(), "own", LINE_BYTES)
    assert (requests.endpoint, requests.model_name) == ("/v1/completions", "org/name")
    lines = b"".join(requests.lines()).split(b"\n")
    assert json.loads(lines[0])["body"] == {"model": "org/name", "prompt": "x"}
    assert lines[1:] == [b"", b"nonsense", named.encode(), b""]


def test_rows_become_chat_lines_with_the_options_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("text\nhello\n")
    options = PromptOptions(prompt_column="text", system="Be brief.", max_tokens=3, temperature=0.5)
    requests = open_requests(path, options, "own", LINE_BYTES)
    assert [msgspec.json.decode(line) for line in requests.lines()] == [
        {
            "custom_id": "row-1",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "own",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "hello"},
                ],
                "max_tokens": 3,
                "temperature": 0.5,
            },
        }
    ]


def test_options_that_do_not_fit_the_file_are_refused(tmp_path: Path) -> None:
    table, lines = tmp_path / "in.csv", tmp_path / "in.jsonl"
    table.write_text("text\nhello\n")
    lines.write_text("{}\n")
    with pytest.raises(InvalidRequest, match="how the rows of in.csv become prompts"):
        open_requests(table, PromptOptions(), "own", LINE_BYTES)
    with pytest.raises(InvalidRequest, match="are for CSV and Parquet"):
        open_requests(lines, PromptOptions(system="x"), "own", LINE_BYTES)
    with pytest.raises(InvalidRequest, match="A JSONL input has a JSONL output"):
        check_output(lines, tmp_path / "out.csv")
    with pytest.raises(InvalidRequest, match="must be different files"):
        check_output(lines, lines)


def test_a_file_that_is_not_finished_never_stands_in_its_place(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"before\n")

    def lines() -> "list[bytes]":
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_lines(target, (line for _ in range(1) for line in lines()))
    assert target.read_bytes() == b"before\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_progress_counts_the_pace_from_where_it_was_gone_on_with() -> None:
    pace = Pace(Totals(succeeded=50, output_tokens=500), now=100.0)
    totals = Totals(succeeded=58, failed=2, output_tokens=700, billed_nano=1_500_000)
    assert pace.told(100, totals, now=110.0) == "20 tokens/s  ETA 0:00:40  cost 0.001500"
