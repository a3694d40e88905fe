"""From what a caller asks for to a grammar: each distinct one compiled once, within limits."""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from llguidance import LLMatcher, LLParserLimits

from engine.errors import InvalidGrammar
from engine.grammar import Grammar, Vocabulary, first_line
from engine.json_schema import STACK_BYTES, grammar_schema

MAX_SOURCE_LETTERS = 512 * 1024
MAX_SECONDS = 10.0
"""How long a compilation may take; most take milliseconds."""
MAX_GRAMMARS = 64
"""Compiled grammars kept; the one that was asked for longest ago goes first."""

# A lexer state takes about 1 kB, and all outputs of one grammar share them.
_LIMITS = LLParserLimits(max_lexer_states=100_000, verbose_errors=False)
_stack_size = threading.Lock()  # the stack size of new threads is one number per process


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """What an output must look like.

    Attributes:
        kind: `json_schema`, `regex`, `choice` (one of some texts) or `lark` (llguidance's dialect).
        text: the schema as JSON, the pattern, a JSON list of the texts, or the rules.
        schemas: JSON Schemas, which the rules of a `lark` grammar call `schema_0`, `schema_1`, ...
    """

    kind: Literal["json_schema", "regex", "choice", "lark"]
    text: str
    schemas: tuple[str, ...] = ()


@dataclass(slots=True)
class _Compilation:
    """One grammar on its way. `ended` is set when there is a grammar or an error."""

    deadline: float
    ended: threading.Event = field(default_factory=threading.Event)
    grammar: Grammar | None = None
    error: InvalidGrammar | None = None


class GrammarCompiler:
    """The grammars of one model. Any thread may ask, at the same time too."""

    def __init__(
        self, open_vocabulary: Callable[[], Vocabulary], max_seconds: float = MAX_SECONDS
    ) -> None:
        """`open_vocabulary` is called when the first grammar is asked for."""
        self._open_vocabulary = open_vocabulary
        self._max_seconds = max_seconds
        self._lock = threading.Lock()
        self._vocabulary: Vocabulary | InvalidGrammar | None = None
        self._known: OrderedDict[GrammarSource, _Compilation] = OrderedDict()

    def compile(self, source: GrammarSource) -> Grammar:
        """The grammar of a source, compiled now or known from before.

        Raises:
            InvalidGrammar: it can't be enforced, or takes too long. It is not tried again, but one
                that was only slow is there for those who ask later.
        """
        compilation = self._compilation(source)
        left = compilation.deadline - time.monotonic()
        if not compilation.ended.wait(max(0.0, left)):
            raise InvalidGrammar(
                f"it takes longer than {self._max_seconds:g} s to prepare; make it simpler"
            )
        if compilation.error is not None:
            raise InvalidGrammar(compilation.error.message)
        assert compilation.grammar is not None
        return compilation.grammar

    def _compilation(self, source: GrammarSource) -> _Compilation:
        if len(source.text) + sum(map(len, source.schemas)) > MAX_SOURCE_LETTERS:
            raise InvalidGrammar(f"it has more than {MAX_SOURCE_LETTERS:,} characters")
        with self._lock:
            vocabulary = self._open()
            known = self._known.get(source)
            if known is not None:
                self._known.move_to_end(source)
                return known
            compilation = _Compilation(time.monotonic() + self._max_seconds)
            self._known[source] = compilation
            if len(self._known) > MAX_GRAMMARS:
                self._known.popitem(last=False)
        work = (source, vocabulary, compilation)
        threading.Thread(target=_run, args=work, name="grammar", daemon=True).start()
        return compilation

    def _open(self) -> Vocabulary:
        if self._vocabulary is None:
            try:
                self._vocabulary = self._open_vocabulary()
            except ValueError as error:
                reason = first_line(str(error))
                self._vocabulary = InvalidGrammar(
                    f"the model's tokenizer can't follow it: {reason}"
                )
        if isinstance(self._vocabulary, InvalidGrammar):
            raise InvalidGrammar(self._vocabulary.message)
        return self._vocabulary


def _start_deep(target: Callable[[], None]) -> threading.Thread:
    """A thread with a deep stack. A compilation that is given up goes on to llguidance's limits."""
    thread = threading.Thread(target=target, name="grammar", daemon=True)
    with _stack_size:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    return thread


def _run(source: GrammarSource, vocabulary: Vocabulary, compilation: _Compilation) -> None:
    try:
        written = _written(source)
        compilation.grammar = Grammar(lambda: _matcher(written, vocabulary), vocabulary)
    except InvalidGrammar as error:
        compilation.error = error
    except BaseException as error:  # a panic of the library is no Exception; nobody may wait on
        compilation.error = InvalidGrammar(f"it can't be prepared ({type(error).__name__})")
    finally:
        compilation.ended.set()


def _matcher(written: str, vocabulary: Vocabulary) -> LLMatcher:
    """Compile in a thread of its own; its first mask is the slow one, and that work is shared."""
    made: list[LLMatcher] = []

    def make() -> None:
        matcher = LLMatcher(vocabulary.tokenizer, written, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
        made.append(matcher)

    _start_deep(make).join()
    if not made:
        raise InvalidGrammar("it can't be prepared")
    if made[0].is_error():
        raise InvalidGrammar(_reason(made[0].get_error()))
    return made[0]


def _written(source: GrammarSource) -> str:
    """The source in llguidance's own form."""
    if source.kind == "json_schema":
        return str(LLMatcher.grammar_from_json_schema(_schema(source.text)))
    if source.kind == "regex":
        return str(LLMatcher.grammar_from_regex(source.text))
    if source.kind == "choice":
        texts = [json.dumps(text, ensure_ascii=False) for text in json.loads(source.text)]
        return str(LLMatcher.grammar_from_lark("start: " + " | ".join(texts)))
    rules = [f"schema_{i}: %json {_schema(schema)}" for i, schema in enumerate(source.schemas)]
    return str(LLMatcher.grammar_from_lark("\n".join([source.text, *rules])))


def _schema(text: str) -> str:
    return json.dumps(grammar_schema(json.loads(text)), ensure_ascii=False)


def _reason(error: str) -> str:
    line = first_line(error)
    if "coerce_one_of" in line:
        return "oneOf is enforced only where its branches exclude each other; use anyOf"
    if "NoExtension" in line:
        return "no output can satisfy it"
    return line
