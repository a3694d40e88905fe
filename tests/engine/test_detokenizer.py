"""Incremental text: split characters, stop strings across tokens, and no prompt leaking in."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import byte_tokenizer
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from engine.detokenizer import Detokenizer

BYTES = byte_tokenizer()


def decode(ids: Sequence[int]) -> str:
    return BYTES.decode(list(ids))


def encode(text: str) -> list[int]:
    return list(BYTES.encode(text).ids)


def fallback_tokenizer() -> FastTokenizer:
    """A SentencePiece-like vocabulary: word pieces with a marked space, bytes as fallback."""
    vocab = {"<unk>": 0, "\u2581Hello": 1, "\u2581world": 2, "!": 3}
    vocab |= {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    tokenizer = FastTokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def feed(detokenizer: Detokenizer, ids: Sequence[int]) -> int:
    """Append until a stop string is complete; returns how many tokens that took."""
    for count, token_id in enumerate(ids, 1):
        if detokenizer.append(token_id):
            return count
    return 0


@pytest.mark.parametrize(
    "text",
    ["caf\u00e9", "\u65e5\u672c\u8a9e", "a\U0001f600b\U0001f468\u200d\U0001f469", "\u05d0\u0301"],
)
@pytest.mark.parametrize("stop", [(), ("never",)])
def test_characters_split_over_tokens_come_out_whole(text: str, stop: tuple[str, ...]) -> None:
    ids = encode(text)
    assert len(ids) > len(text)
    detokenizer = Detokenizer(decode, stop, encode("prompt"))
    assert feed(detokenizer, ids) == 0
    assert detokenizer.text() == text


def test_stop_string_across_tokens_is_found_and_cut() -> None:
    ids = encode("one two STOP three")
    detokenizer = Detokenizer(decode, ("STOP",), [])
    assert feed(detokenizer, ids) == len(encode("one two STOP"))
    assert detokenizer.text() == "one two "


def test_stop_string_of_split_characters_is_found() -> None:
    detokenizer = Detokenizer(decode, ("\U0001f600",), [])
    assert feed(detokenizer, encode("ha \U0001f600 ha")) == len(encode("ha \U0001f600"))
    assert detokenizer.text() == "ha "


def test_earliest_of_several_stop_strings_wins() -> None:
    detokenizer = Detokenizer(decode, ("d", "and", "n"), [])
    token_and = encode("and")
    assert len(token_and) == 1
    assert feed(detokenizer, [*encode("x "), *token_and]) == len(encode("x ")) + 1
    assert detokenizer.text() == "x "


def test_stop_string_in_the_prompt_does_not_count() -> None:
    detokenizer = Detokenizer(decode, ("ab",), encode("xxa"))
    assert feed(detokenizer, encode("bcd")) == 0
    assert detokenizer.text() == "bcd"


def test_prompt_ending_inside_a_character_does_not_leak_into_the_output() -> None:
    first, *rest = encode("\u65e5")
    detokenizer = Detokenizer(decode, ("never",), [*encode("secret"), first])
    feed(detokenizer, [*rest, *encode("ok")])
    text = detokenizer.text()
    assert "\u65e5" not in text
    assert "secret" not in text
    assert text.endswith("ok")


def test_unfinished_character_shows_as_replacement_only_at_the_end() -> None:
    ids = encode("ok\u65e5")
    detokenizer = Detokenizer(decode, ("\ufffd",), [])
    assert feed(detokenizer, ids[:-1]) == 0
    assert detokenizer.text() == "ok\ufffd"


def test_bytes_that_never_become_a_character_do_not_hide_a_stop_string() -> None:
    garbage = [encode("\u65e5")[1]] * 40
    detokenizer = Detokenizer(decode, ("STOP",), [])
    ids = [*garbage, *encode("STOP tail")]
    assert feed(detokenizer, ids) == 40 + len(encode("STOP"))
    assert detokenizer.text().rstrip("\ufffd") == ""


def test_leading_space_is_kept_when_the_prompt_is_context() -> None:
    tokenizer = fallback_tokenizer()

    def decode_pieces(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids))

    for stop in ((), ("never",)):
        detokenizer = Detokenizer(decode_pieces, stop, [1])
        feed(detokenizer, [2, 3])
        assert detokenizer.text() == " world!"


def test_byte_fallback_characters_come_out_whole() -> None:
    tokenizer = fallback_tokenizer()
    ids = [1, *(4 + byte for byte in "\U0001f600".encode()), 3]
    detokenizer = Detokenizer(lambda part: tokenizer.decode(list(part)), ("!",), [1])
    assert feed(detokenizer, ids) == len(ids)
    assert detokenizer.text() == " Hello\U0001f600"


def test_hidden_last_token_is_not_in_the_text() -> None:
    detokenizer = Detokenizer(decode, (), [])
    feed(detokenizer, encode("abc"))
    assert detokenizer.text(num_hidden=1) == "ab"


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=30), prompt=st.text(max_size=6), stop=st.text(min_size=1, max_size=3))
def test_stopped_text_is_what_stands_before_the_first_stop(
    text: str, prompt: str, stop: str
) -> None:
    if "\ufffd" in text + prompt + stop:
        return
    detokenizer = Detokenizer(decode, (stop,), encode(prompt))
    feed(detokenizer, encode(text))
    assert detokenizer.text() == text.split(stop)[0]


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 260), max_size=30))
def test_text_of_any_tokens_equals_decoding_them_at_once(ids: list[int]) -> None:
    for stop in ((), ("\x00never",)):
        detokenizer = Detokenizer(decode, stop, encode("prompt"))
        feed(detokenizer, ids)
        assert detokenizer.text() == decode(ids)


def test_a_stop_string_that_came_too_early_never_stops_the_output() -> None:
    detokenizer = Detokenizer(decode, ("b", "a long stop"), encode("prompt"))
    early = [detokenizer.append(token_id, may_stop=False) for token_id in encode("abc")]
    late = [detokenizer.append(token_id) for token_id in encode("de")]
    assert not any([*early, *late])
    assert detokenizer.text() == "abcde"
    assert feed(detokenizer, encode("xb")) == 2
    assert detokenizer.text() == "abcdex"
