"""The tokenizer: ids equal transformers', templates are sandboxed, refusals are clear."""

import json
import os
from pathlib import Path

import pytest
from test_detokenizer import fallback_tokenizer
from tiny_models import EOS_ID, save_tokenizer
from transformers import AutoTokenizer

from engine.errors import InvalidParams, UnsupportedModel
from engine.token_bytes import TokenBytes
from engine.tokenizer import Tokenizer

CONVERSATIONS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "Capital of Jap\u00e4n? \U0001f5fe"},
        {"role": "assistant", "content": "Tokyo"},
        {"role": "user", "content": "  And of <|im_start|> France?\n"},
    ],
]


def tokenizer_with(folder: Path, chat_template: str | None) -> Tokenizer:
    save_tokenizer(folder, chat_template)
    return Tokenizer(folder)


@pytest.mark.slow
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_chat_ids_equal_those_of_transformers(
    smollm2_folder: Path, messages: list[dict[str, str]]
) -> None:
    theirs = AutoTokenizer.from_pretrained(smollm2_folder)
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert Tokenizer(smollm2_folder).render_chat(messages) == expected


@pytest.mark.slow
def test_plain_ids_and_text_equal_those_of_transformers(smollm2_folder: Path) -> None:
    ours, theirs = Tokenizer(smollm2_folder), AutoTokenizer.from_pretrained(smollm2_folder)
    text = "Caf\u00e9 \u65e5\u672c \U0001f600  two  spaces\n\ttab <|im_end|> 12345"
    for add_special_tokens in (False, True):
        expected = theirs.encode(text, add_special_tokens=add_special_tokens)
        assert ours.encode(text, add_special_tokens) == expected
    assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True)
    assert theirs.eos_token_id in ours.eos_token_ids


def test_template_is_rendered_with_generation_prompt_and_special_tokens(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(
        tmp_path,
        "{% for m in messages %}{% if loop.index > 5 %}{% break %}{% endif %}{{ m.role }}:"
        "{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}{% endfor %}"
        "{{ {'a': '<\u00e9>'} | tojson }}{% if add_generation_prompt %}bot:{% endif %}",
    )
    ids = tokenizer.render_chat([{"role": "me", "content": "hi"}])
    assert EOS_ID in ids
    assert tokenizer.decode(ids) == 'me:hi{"a": "<\u00e9>"}bot:'


def test_template_in_its_own_file_is_used(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "setting")
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Tokenizer(tmp_path).decode(Tokenizer(tmp_path).render_chat([])) == "file"


def test_named_templates_use_the_default_one(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    settings = {
        "eos_token": {"content": "<end>"},
        "chat_template": [
            {"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "plain"},
        ],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.render_chat([])) == "plain"
    assert tokenizer.eos_token_ids == {EOS_ID}


@pytest.mark.parametrize("is_file", [False, True])
def test_tools_are_shown_by_the_template_that_is_made_for_them(
    tmp_path: Path, is_file: bool
) -> None:
    own = "{{ tools[0].name }}+{{ messages[0].content }}"
    save_tokenizer(tmp_path, "plain")
    if is_file:
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(own)
    else:
        named = [
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": own},
        ]
        settings = {"eos_token": "<end>", "chat_template": named}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.tool_template_text == own
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.decode(tokenizer.render_chat(messages)) == "plain"
    assert tokenizer.decode(tokenizer.render_chat(messages, [{"name": "f"}])) == "f+hi"


@pytest.mark.parametrize(
    ("template", "takes_them"),
    [
        ("{% if tools %}{{ tools | tojson }}{% endif %}", True),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}", True),
        ("Between <tools> and </tools>: {{ xml_tools }}", False),
        ("{% for m in messages %}{{ m.tools }}{% endfor %}", False),
    ],
)
def test_a_template_that_never_reads_tools_is_known(
    tmp_path: Path, template: str, takes_them: bool
) -> None:
    tokenizer = tokenizer_with(tmp_path, template)
    assert tokenizer.tool_template_text == (template if takes_them else "")


def test_one_template_shows_tools_too_and_special_tokens_are_known_by_name(
    tmp_path: Path,
) -> None:
    tokenizer = tokenizer_with(tmp_path, "{{ tools }}{{ eos_token }}")
    ids = tokenizer.render_chat([], [{"name": "f"}])
    assert tokenizer.decode(ids) == "[{'name': 'f'}]"
    assert tokenizer.decode_all(ids) == "[{'name': 'f'}]<end>"
    assert tokenizer.special_token_id("<end>") == EOS_ID
    assert tokenizer.special_token_id("the") is None
    assert tokenizer.special_token_id("unknown") is None


def test_missing_template_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidParams, match="no chat template") as caught:
        tokenizer_with(tmp_path, None).render_chat([{"role": "user", "content": "hi"}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ messages.__class__.__mro__[-1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch ' ~ messages[0].content) }}",
        "{{ ''.__class__ }}{{ raise_exception.__globals__['json'] }}",
        "{% for i in range(10000000) %}x{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ '%s' | format(messages.__class__.__base__.__subclasses__()) }}",
    ],
)
def test_malicious_template_is_stopped(tmp_path: Path, attack: str) -> None:
    victim = tmp_path / "touched"
    tokenizer = tokenizer_with(tmp_path, attack)
    try:
        text = tokenizer.decode(tokenizer.render_chat([{"content": str(victim)}]))
    except InvalidParams:
        text = ""
    assert "class" not in text
    assert "module" not in text
    assert not os.path.exists(victim)


def test_refusal_by_the_template_is_passed_on(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidParams, match="roles must alternate"):
        tokenizer.render_chat([{"role": "user", "content": "hi"}])


def test_end_tokens_come_from_all_files_and_lists(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert Tokenizer(tmp_path).eos_token_ids == {3, 4, 5, EOS_ID}


def test_saved_truncation_does_not_shorten_prompts(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    saved = json.loads(path.read_text())
    saved["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    path.write_text(json.dumps(saved))
    assert len(Tokenizer(tmp_path).encode("a long text", False)) > 2


def test_missing_and_broken_files_are_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="missing"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="can't be read"):
        Tokenizer(tmp_path)
    with pytest.raises(UnsupportedModel, match="template is not valid"):
        tokenizer_with(tmp_path, "{% if %}")


def test_largest_token_id_is_known(tmp_path: Path) -> None:
    assert tokenizer_with(tmp_path, None).num_token_ids == EOS_ID + 1


def test_bytes_of_tokens_add_up_to_the_text(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path, None)
    text = "the land \u2603 \x00\xa0\xad\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
    assert tokenizer.token_bytes(EOS_ID) == b"<end>"
    assert tokenizer.token_bytes(10_000) == b""


def test_bytes_of_a_sentencepiece_vocabulary_are_read_from_its_names() -> None:
    tokens = TokenBytes(fallback_tokenizer())
    assert [tokens.of(i) for i in (1, 3, 4, 4 + 0xE2)] == [b" Hello", b"!", b"\x00", b"\xe2"]
