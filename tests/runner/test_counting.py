"""Counting lines without running them: what a worker would have counted, and no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.config import BLOCK_SIZE
from engine.tokenizer import Tokenizer
from runner.domain.counts import Count, LineKind
from runner.domain.leases import ItemInput
from runner.inference import open_counter

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
CONTEXT = 256
LONG = "A tale of the sea and of ships that sail on it. " * 12


def item(idx: int, endpoint: str = CHAT, **body: object) -> ItemInput:
    line = {
        "custom_id": str(idx),
        "method": "POST",
        "url": endpoint,
        "body": {"model": "m", **body},
    }
    return ItemInput(idx, str(idx), json.dumps(line).encode())


def chat(idx: int, text: str, **body: object) -> ItemInput:
    return item(idx, messages=[{"role": "user", "content": text}], **body)


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> Tokenizer:
    return Tokenizer(smollm2_folder)


def count(
    folder: Path, *lines: ItemInput, endpoint: str = CHAT, before: ItemInput | None = None
) -> Count:
    return open_counter(str(folder), CONTEXT).count(LineKind(endpoint), lines, before)


def frame(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.render_chat([{"role": "user", "content": text}])


def test_chats_are_counted_in_their_template(smollm2_folder: Path, tokenizer: Tokenizer) -> None:
    texts = ["Hi.", "Grüße, 東京 and 🚀\n" * 5, ""]
    counted = count(smollm2_folder, *(chat(n, text) for n, text in enumerate(texts)))
    sizes = [len(frame(tokenizer, text)) for text in texts]
    assert (counted.lines, counted.input_tokens, counted.longest) == (3, sum(sizes), max(sizes))


def test_texts_and_ids_are_counted_prompt_by_prompt(
    smollm2_folder: Path, tokenizer: Tokenizer
) -> None:
    lines = (
        item(0, COMPLETIONS, prompt=["One day", "Once upon"], n=2, max_tokens=5),
        item(1, COMPLETIONS, prompt=[1, 2, 3], max_tokens=7),
        item(2, COMPLETIONS, prompt=[[1], [2, 3]], max_tokens=1),
    )
    counted = count(smollm2_folder, *lines, endpoint=COMPLETIONS)
    texts = sum(len(tokenizer.encode(text, True)) for text in ("One day", "Once upon"))
    assert counted.input_tokens == texts + 3 + 3
    assert (counted.bounded_lines, counted.bounded_output) == (3, 5 * 4 + 7 + 2)


def test_a_prompt_that_leaves_no_room_is_named(smollm2_folder: Path) -> None:
    counted = count(smollm2_folder, chat(0, "Hi."), chat(7, LONG * 3), chat(9, LONG * 4))
    assert (counted.lines, counted.too_long, counted.too_long_idx) == (1, 2, (7, 9))


def test_a_prompt_may_fill_the_context_but_for_one_token(smollm2_folder: Path) -> None:
    ids = [1] * CONTEXT
    full = item(0, COMPLETIONS, prompt=ids)
    fits = item(1, COMPLETIONS, prompt=ids[1:], max_tokens=99)
    counted = count(smollm2_folder, full, fits, endpoint=COMPLETIONS)
    assert (counted.too_long_idx, counted.input_tokens) == ((0,), CONTEXT - 1)
    assert counted.bounded_output == 1  # all that there is room for


def test_an_embedding_needs_no_room_for_output(smollm2_folder: Path) -> None:
    line = item(0, EMBEDDINGS, input=[1] * CONTEXT)
    counted = count(smollm2_folder, line, endpoint=EMBEDDINGS)
    assert (counted.input_tokens, counted.bounded_lines) == (CONTEXT, 1)
    assert counted.bounded_output == counted.unbounded_output == 0


def test_a_shortened_prompt_counts_as_it_runs(smollm2_folder: Path) -> None:
    line = chat(0, LONG * 3, truncate_prompt="keep_last", max_tokens=56)
    counted = count(smollm2_folder, line)
    assert (counted.lines, counted.longest) == (1, CONTEXT - 56)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": "Hi."},
        {"messages": [{"role": "wizard", "content": "Hi."}]},
        {"messages": [{"role": "user", "content": "Hi."}], "wishes": 3},
        {"messages": [{"role": "user", "content": "Hi."}], "n": 0},
        {"messages": [{"role": "user", "content": "Hi."}], "tools": [{"type": "x"}]},
    ],
)
def test_a_line_that_a_worker_refuses_costs_no_token(
    smollm2_folder: Path, body: dict[str, object]
) -> None:
    counted = count(smollm2_folder, item(0, **body), chat(1, "Hi."))
    assert (counted.lines, counted.refused) == (1, 1)


@pytest.mark.parametrize("prompt", ["", [1, -1], [1, 10**9], [[1], []]])
def test_a_prompt_that_is_empty_or_of_unknown_ids_is_refused(
    smollm2_folder: Path, prompt: object
) -> None:
    counted = count(smollm2_folder, item(0, COMPLETIONS, prompt=prompt), endpoint=COMPLETIONS)
    assert counted == Count(refused=1)


def test_a_shared_beginning_is_found_in_whole_blocks(
    smollm2_folder: Path, tokenizer: Tokenizer
) -> None:
    one, two = frame(tokenizer, LONG + "One?"), frame(tokenizer, LONG + "Two?")
    shared = next(n for n, pair in enumerate(zip(one, two, strict=False)) if len(set(pair)) == 2)
    blocks = shared // BLOCK_SIZE * BLOCK_SIZE
    assert blocks > 0
    first, second = chat(0, LONG + "One?"), chat(1, LONG + "Two?")
    assert count(smollm2_folder, first).cached_tokens == 0
    assert count(smollm2_folder, first, second).cached_tokens == blocks
    assert count(smollm2_folder, second, before=first).cached_tokens == blocks


def test_the_last_token_of_a_prompt_is_never_cached(smollm2_folder: Path) -> None:
    lines = [item(n, COMPLETIONS, prompt=[5] * 2 * BLOCK_SIZE) for n in range(2)]
    assert count(smollm2_folder, *lines, endpoint=COMPLETIONS).cached_tokens == BLOCK_SIZE


def test_lines_without_a_bound_may_fill_the_context(
    smollm2_folder: Path, tokenizer: Tokenizer
) -> None:
    counted = count(smollm2_folder, chat(0, "Hi.", n=2))
    assert (counted.unbounded_lines, counted.bounded_lines) == (1, 0)
    assert counted.unbounded_output == 2 * (CONTEXT - len(frame(tokenizer, "Hi.")))


def test_counts_add_up_however_lines_are_cut(smollm2_folder: Path) -> None:
    lines = [chat(n, LONG + str(n), max_tokens=n + 1) for n in range(6)]
    whole = count(smollm2_folder, *lines)
    parts = count(smollm2_folder, *lines[:2]) + count(smollm2_folder, *lines[2:], before=lines[1])
    assert parts == whole


def test_the_stub_counts_words() -> None:
    counted = open_counter("stub:", CONTEXT).count(LineKind(CHAT), [chat(0, "three small words")])
    assert (counted.input_tokens, counted.too_long) == (3, 0)


def test_counting_loads_no_torch(smollm2_folder: Path) -> None:
    code = (
        "import sys; from runner.inference import open_counter;"
        f"open_counter({str(smollm2_folder)!r}, 64); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
