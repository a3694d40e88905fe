"""Grammars: every output fits, whatever the scheduling does, and a fault stays with its request."""

import contextlib
import json
import re
import threading
from array import array
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from llguidance import LLMatcher
from tiny_models import EOS_ID, VOCAB_SIZE, EngineFactory, byte_tokenizer

from engine import grammar as engine_grammar
from engine import grammar_compiler
from engine.errors import InvalidGrammar, InvalidParams
from engine.grammar import Grammar, GrammarState, Vocabulary, allowed_tokens
from engine.grammar_compiler import GrammarCompiler, GrammarSource
from engine.json_schema import MAX_LEVELS, count_levels
from engine.llm_engine import LLMEngine
from engine.logit_edits import LogitEdits
from engine.logits import edit_logits
from engine.outputs import FinishReason, RequestOutput
from engine.sampling_params import SamplingParams

PROMPT = [65, 66, 67, 68]
COLOURS = ["red", "green", "ultramarine blue", 'a "quoted" \u00e9']
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PATIENCE = 90.0
USES_UP_ITS_LEXER = "(a?){5000}a{5000}"  # with the first letter


def new_compiler(max_seconds: float = PATIENCE) -> GrammarCompiler:
    def vocabulary() -> Vocabulary:
        return Vocabulary(byte_tokenizer().to_str(), VOCAB_SIZE, [EOS_ID])

    return GrammarCompiler(vocabulary, max_seconds)


COMPILER = new_compiler()


def of_schema(schema: object) -> Grammar:
    return COMPILER.compile(GrammarSource("json_schema", json.dumps(schema)))


def of_regex(pattern: str) -> Grammar:
    return COMPILER.compile(GrammarSource("regex", pattern))


def asked(grammar: Grammar | None, max_tokens: int = 60, **fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, grammar=grammar, **fields)  # type: ignore[arg-type]


def run(engine: LLMEngine, wanted: list[SamplingParams]) -> list[RequestOutput]:
    for number, params in enumerate(wanted):
        engine.add_request(str(number), [*PROMPT, number % 250], params)
    ended: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        ended.update((output.request_id, output) for output in engine.step())
    return [ended[str(number)] for number in range(len(wanted))]


def texts_after(state: GrammarState, held_back: Sequence[int] = ()) -> set[str]:
    """The tokens that may come next, as text."""
    words = allowed_tokens([state], [array("q", held_back)])[0].view(np.uint32)
    tokenizer = byte_tokenizer()
    ids = [i for i in range(VOCAB_SIZE) if words[i // 32] >> np.uint32(i % 32) & 1]
    return {"<end>" if i == EOS_ID else tokenizer.decode([i]) for i in ids}


def test_every_output_fits_its_grammar_and_rows_without_one_are_untouched(
    make_engine: EngineFactory,
) -> None:
    colours, person = of_schema({"enum": COLOURS}), of_schema(PERSON)
    wanted = [
        asked((colours, person, None)[number % 3], temperature=1.3 * (number % 2), seed=number)
        for number in range(18)
    ]
    outputs = run(make_engine(), wanted)
    for output in outputs[0::3]:
        assert output.finish_reason is FinishReason.STOP
        assert json.loads(output.text) in COLOURS
    for output in outputs[1::3]:
        assert output.finish_reason is FinishReason.STOP
        value = msgspec.json.decode(output.text)
        assert list(value) == ["name", "age", "tags"]
        assert len(value["name"]) <= 5
        assert 0 <= value["age"] <= 150
        assert set(value["tags"]) <= {"x", "y"}
    assert len({output.text for output in outputs[1::3]}) > 1
    plain = run(make_engine(), [replace(params, grammar=None) for params in wanted])
    assert [o.token_ids for o in outputs[2::3]] == [o.token_ids for o in plain[2::3]]


def test_preemption_changes_no_output(make_engine: EngineFactory) -> None:
    person = of_schema(PERSON)
    wanted = [asked(person, temperature=1.2, seed=number) for number in range(6)]
    calm = run(make_engine(), wanted)
    shaken = run(make_engine(preempt_every=3, max_num_batched_tokens=5), wanted)
    assert sum(output.metrics.preemptions for output in shaken) > 6
    assert [o.token_ids for o in shaken] == [o.token_ids for o in calm]


def test_the_grammar_decides_when_an_end_token_may_come(make_engine: EngineFactory) -> None:
    eager = {EOS_ID: 100.0}
    three, open_ended = run(
        make_engine(),
        [
            asked(of_regex("[0-9]{3,}"), logit_bias=eager),
            asked(of_regex("[0-9]{3,}"), logit_bias={EOS_ID: -100.0}, max_tokens=9),
        ],
    )
    assert re.fullmatch("[0-9]{3}", three.text)
    assert three.token_ids[-1] == EOS_ID
    assert three.finish_reason is FinishReason.STOP
    assert re.fullmatch("[0-9]{9}", open_ended.text)
    assert open_ended.finish_reason is FinishReason.LENGTH


def test_a_complete_output_ends_at_once_even_before_min_tokens(make_engine: EngineFactory) -> None:
    complete, exact, held, cut = run(
        make_engine(),
        [
            asked(of_schema({"const": "x"}), min_tokens=20),
            asked(of_schema({"const": "x"}), max_tokens=3),
            asked(of_regex("b{1,9}"), min_tokens=5, logit_bias={EOS_ID: 100.0}),
            asked(of_schema({"const": "xyz"}), max_tokens=3),
        ],
    )
    assert (complete.text, complete.finish_reason) == ('"x"', FinishReason.STOP)
    assert (exact.text, exact.finish_reason) == ('"x"', FinishReason.STOP)
    assert (held.text, held.finish_reason) == ("bbbbb", FinishReason.STOP)
    assert (cut.text, cut.finish_reason) == ('"xy', FinishReason.LENGTH)


def test_a_stop_string_ends_an_output_inside_its_grammar(make_engine: EngineFactory) -> None:
    (output,) = run(make_engine(), [asked(of_schema({"const": "stop here"}), stop=(" here",))])
    assert (output.text, output.finish_reason) == ('"stop', FinishReason.STOP)


def test_a_fault_of_a_grammar_ends_its_request_only(make_engine: EngineFactory) -> None:
    engine = make_engine()
    broken, fine = run(
        engine, [asked(of_regex(USES_UP_ITS_LEXER)), asked(of_schema({"const": "fine"}))]
    )
    assert broken.finish_reason is FinishReason.ERROR
    assert broken.error is not None
    assert broken.error.code == "grammar_fault"
    assert "too many" in broken.error.message
    assert fine.text == '"fine"'


def test_ignore_eos_and_foreign_grammars_are_refused(make_engine: EngineFactory) -> None:
    grammar = of_schema({"const": "x"})
    with pytest.raises(InvalidParams) as caught:
        make_engine().add_request("r", PROMPT, asked(grammar, ignore_eos=True))
    assert caught.value.param == "ignore_eos"
    foreign = GrammarCompiler(
        lambda: Vocabulary(byte_tokenizer().to_str(), 600, [EOS_ID]), PATIENCE
    )
    with pytest.raises(InvalidParams) as caught:
        make_engine().add_request("r", PROMPT, asked(foreign.compile(GrammarSource("regex", "x"))))
    assert caught.value.param == "grammar"


def test_masks_are_laid_on_a_copy_and_on_their_own_rows() -> None:
    raw = torch.randn(4, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
    before = raw.clone()
    edits = [
        None,
        LogitEdits.of(asked(of_regex("[ab]")), PROMPT, [EOS_ID]),
        LogitEdits.of(asked(None, min_tokens=2), PROMPT, [EOS_ID]),
        LogitEdits.of(asked(of_regex("[ab]c?")), PROMPT, [EOS_ID]),
    ]
    tokenizer = byte_tokenizer()
    assert edits[3] is not None
    edits[3].add(tokenizer.token_to_id("a"))
    edited = edit_logits(raw, edits)
    assert torch.equal(raw, before)
    assert torch.equal(edited[0], raw[0])
    assert edited[2].isfinite().sum() == VOCAB_SIZE - 1
    allowed = [{int(i) for i in row.isfinite().nonzero()[:, 0]} for row in (edited[1], edited[3])]
    assert allowed[0] == {tokenizer.token_to_id("a"), tokenizer.token_to_id("b")}
    assert allowed[1] == {tokenizer.token_to_id("c"), EOS_ID}
    assert torch.equal(edited[1][sorted(allowed[0])], raw[1][sorted(allowed[0])])


def test_end_tokens_are_held_back_only_where_something_else_may_come() -> None:
    state = of_regex("ab?").start()
    state.accept(byte_tokenizer().token_to_id("a"))
    assert texts_after(state) == {"b", "<end>"}
    assert texts_after(state, held_back=[EOS_ID]) == {"b"}
    state.accept(byte_tokenizer().token_to_id("b"))
    assert state.is_complete
    assert texts_after(state, held_back=[EOS_ID]) == {"<end>"}


def test_a_lexer_that_others_used_up_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = grammar_compiler.LLParserLimits(max_lexer_states=400, verbose_errors=False)
    monkeypatch.setattr(grammar_compiler, "_LIMITS", limits)
    monkeypatch.setattr(engine_grammar, "MAX_RENEWAL_SECONDS", PATIENCE)
    grammar = new_compiler().compile(GrammarSource("regex", "(a|b)*a(a|b){60}"))
    letters = [byte_tokenizer().token_to_id(letter) for letter in "ab"]
    early = grammar.start()
    early.accept(letters[0])
    generator = torch.Generator().manual_seed(1)
    for _ in range(12):
        state = grammar.start()
        for choice in torch.randint(0, 2, (90,), generator=generator).tolist():
            assert allowed_tokens([state], [()]).any()
            state.accept(letters[choice])
        assert state.fault is None
    assert grammar.copy()[1] > 1
    assert texts_after(early) == {"a", "b"}
    assert early.fault is None


def test_a_token_that_is_not_allowed_is_a_fault_without_a_renewal() -> None:
    grammar = of_regex("b+")
    state = grammar.start()
    state.accept(byte_tokenizer().token_to_id("a"))
    assert state.fault is not None
    assert "doesn't satisfy" in state.fault
    assert grammar.copy()[1] == 0


def test_json_has_at_most_one_space_after_a_separator_and_none_elsewhere() -> None:
    state = of_schema({"type": "object", "x-guidance": {"whitespace_flexible": True}}).start()
    tokenizer = byte_tokenizer()
    for letter in '{"k": ':
        state.accept(tokenizer.token_to_id({" ": "\u0120"}.get(letter, letter)))
    assert state.fault is None
    assert not texts_after(state) & {" ", "\n", "\t"}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (GrammarSource("json_schema", '{"type": "wrong"}'), "Invalid type"),
        (GrammarSource("json_schema", '{"not": {"type": "string"}}'), "not"),
        (GrammarSource("json_schema", '{"x-guidance": {"lenient": true}, "not": {}}'), "not"),
        (GrammarSource("json_schema", '{"$ref": "#"}'), "no output"),
        (GrammarSource("json_schema", '{"$ref": "https://example.com/s.json"}'), "example.com"),
        (GrammarSource("json_schema", "[]"), "object"),
        (
            GrammarSource(
                "json_schema",
                '{"oneOf": [{"type": "object"}, {"required": ["b"], "type": "object"}]}',
            ),
            "use anyOf",
        ),
        (GrammarSource("regex", "(("), "unclosed group"),
        (GrammarSource("regex", "(?=a)"), "look-around"),
        (GrammarSource("regex", "a" * (grammar_compiler.MAX_SOURCE_LETTERS + 1)), "characters"),
        (GrammarSource("lark", "start: schema_0", ('{"type": "wrong"}',)), "Invalid type"),
    ],
)
def test_what_cannot_be_enforced_is_refused_with_the_reason(
    source: GrammarSource, reason: str
) -> None:
    for _ in range(2):
        with pytest.raises(InvalidGrammar, match=reason) as caught:
            COMPILER.compile(source)
        assert caught.value.code == "invalid_grammar"
        assert "\n" not in caught.value.message


def chain(length: int) -> dict[str, object]:
    links: dict[str, object] = {
        f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}, {"type": "integer"}]}
        for i in range(length)
    }
    return {"$defs": {**links, f"a{length}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def test_a_schema_too_deep_for_the_compiler_is_refused_before_it_gets_there() -> None:
    longest = MAX_LEVELS // 3 - 5
    assert MAX_LEVELS - 20 < count_levels(chain(longest)) <= MAX_LEVELS
    assert texts_after(of_schema(chain(longest)).start()) >= {"1", '"'}
    with pytest.raises(InvalidGrammar, match="levels deep"):
        of_schema(chain(longest + 10))
    assert count_levels({"$ref": "#/nowhere", "a": [{"$ref": "#/a/0"}]}) == 3 + 3 + 1


def test_equal_sources_are_compiled_once_and_old_ones_are_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []

    def vocabulary() -> Vocabulary:
        opened.append(1)
        return Vocabulary(byte_tokenizer().to_str(), VOCAB_SIZE, [EOS_ID])

    monkeypatch.setattr(grammar_compiler, "MAX_GRAMMARS", 3)
    compiler = GrammarCompiler(vocabulary, PATIENCE)
    source = GrammarSource("choice", json.dumps(COLOURS))
    found: list[Grammar] = []
    threads = [
        threading.Thread(target=lambda: found.append(compiler.compile(source))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    for number in range(3):
        compiler.compile(GrammarSource("regex", f"{number}"))
    assert compiler.compile(source) is not found[0]
    assert opened == [1]


class SlowLibrary:
    """llguidance's compiler, but it waits to be released."""

    grammar_from_regex = staticmethod(LLMatcher.grammar_from_regex)

    def __init__(self) -> None:
        self.released = threading.Event()

    def __call__(self, *args: object, **options: object) -> LLMatcher:
        self.released.wait()
        return LLMatcher(*args, **options)  # type: ignore[arg-type]


def test_a_compilation_that_takes_too_long_is_refused_and_found_when_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = SlowLibrary()
    monkeypatch.setattr(grammar_compiler, "LLMatcher", library)
    compiler = new_compiler(max_seconds=0.01)
    source = GrammarSource("regex", "x")
    for _ in range(2):
        with pytest.raises(InvalidGrammar, match=r"takes longer than 0.01 s"):
            compiler.compile(source)
    library.released.set()
    found = None
    while found is None:
        with contextlib.suppress(InvalidGrammar):
            found = compiler.compile(source)
    assert texts_after(found.start()) == {"x"}


def test_a_tokenizer_that_llguidance_does_not_know_is_refused() -> None:
    def vocabulary() -> Vocabulary:
        return Vocabulary("{}", VOCAB_SIZE, [EOS_ID])

    def endless() -> Vocabulary:
        return Vocabulary(byte_tokenizer().to_str(), VOCAB_SIZE, [])

    for opener, reason in ((vocabulary, "can't follow"), (endless, "no end token")):
        compiler = GrammarCompiler(opener, PATIENCE)
        for _ in range(2):
            with pytest.raises(InvalidGrammar, match=reason):
                compiler.compile(GrammarSource("regex", "x"))
