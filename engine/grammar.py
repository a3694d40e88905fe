"""A grammar over tokens: what an output may hold next, token by token.

The work is done by llguidance (an Earley parser over a derivative-based lexer, walked along the
trie of the vocabulary). A state belongs to one request and follows its output tokens only, so
chunking, batching and preemption cannot touch it. Nothing here names a device.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from numpy.typing import NDArray

from engine.errors import InvalidGrammar

WORD_BITS = 32
"""Tokens per word of a bitmask; token `t` is bit `t % 32` of word `t // 32`."""

MAX_RENEWALS = 4
"""How often one output may go on with a new edition of its grammar."""
MAX_RENEWAL_SECONDS = 0.5
"""Grammars that took longer to compile are not compiled again: everybody would wait."""
_LEXER_ERROR = "lexer error"


class Vocabulary:
    """The tokens of one model as grammars see them. Building one takes a second or so.

    Attributes:
        num_token_ids: one more than the largest token id.
        tokenizer: llguidance's view of the tokens.
        executor: threads that fill the masks of many rows at once.
    """

    def __init__(self, tokenizer_json: str, num_token_ids: int, end_ids: Iterable[int]) -> None:
        """`end_ids` are the tokens by which an output that is complete may end.

        Raises:
            ValueError: llguidance doesn't know this kind of tokenizer.
        """
        ends = sorted(i for i in end_ids if i < num_token_ids)
        if not ends:
            raise ValueError("it has no end token")
        self.num_token_ids = num_token_ids
        self.tokenizer = LLTokenizer(tokenizer_json, n_vocab=num_token_ids, eos_token=ends)
        self.executor = LLExecutor()


class Grammar:
    """A compiled grammar, from which any number of requests start, each on its own.

    They share one lexer, which learns as it goes. A wild pattern can use up its limits, and then
    it fails for all of them; so who is stopped by it goes on with a new edition.
    """

    def __init__(self, build: Callable[[], LLMatcher], vocabulary: Vocabulary) -> None:
        """`build` compiles; what it raises is passed on.

        Raises:
            InvalidGrammar: it can't be compiled.
        """
        self.vocabulary = vocabulary
        self._build = build
        started = time.monotonic()
        self._matcher = build()
        self._is_quick = time.monotonic() - started < MAX_RENEWAL_SECONDS
        self._edition = 0
        self._lock = threading.Lock()

    def start(self) -> "GrammarState":
        return GrammarState(self)

    def copy(self) -> tuple[LLMatcher, int]:
        """A matcher at its start, and the number of its edition."""
        with self._lock:
            return self._matcher.deep_copy(), self._edition

    def renew(self, used_up: int) -> bool:
        """Replace an edition whose lexer is used up; False if that can't be done."""
        with self._lock:
            if used_up == self._edition:
                if not self._is_quick:
                    return False
                try:
                    self._matcher = self._build()
                except InvalidGrammar:
                    return False
                self._edition += 1
        return True


class GrammarState:
    """How far one output has come in its grammar.

    Attributes:
        fault: why the grammar could not be followed any further, or None. It stays.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.vocabulary = grammar.vocabulary
        self.fault: str | None = None
        self._grammar = grammar
        self.matcher, self._edition = grammar.copy()
        self._token_ids: list[int] = []
        self._renewals = 0

    @property
    def is_complete(self) -> bool:
        """Whether nothing but an end token may follow."""
        return self.fault is None and self.matcher.is_stopped()

    def accept(self, token_id: int) -> None:
        """Follow one output token; one that isn't allowed is a fault."""
        if self.fault is None:
            self._token_ids.append(token_id)
            if not self.matcher.consume_token(token_id):
                self.recover()

    def recover(self) -> None:
        """After an error: begin anew where only the lexer is used up, else note the fault."""
        while self.matcher.is_error():
            error = self.matcher.get_error()
            is_used_up = _LEXER_ERROR in error and self._renewals < MAX_RENEWALS
            if not is_used_up or not self._grammar.renew(self._edition):
                self.fault = first_line(error)
                return
            self._renewals += 1
            self.matcher, self._edition = self._grammar.copy()
            self.matcher.consume_tokens(self._token_ids)


def allowed_tokens(
    states: Sequence[GrammarState], held_back: Sequence[Sequence[int]]
) -> NDArray[np.int32]:
    """What may come next in each of some outputs of one model.

    Args:
        states: of the outputs; none is moved. One with a fault has a mask without meaning.
        held_back: token ids that each output must not take yet. Where nothing else is allowed
            they are: a grammar that is complete can only end.

    Returns:
        [outputs, words] bitmasks, see `WORD_BITS`.
    """
    vocabulary = states[0].vocabulary
    words = -(-vocabulary.num_token_ids // WORD_BITS)
    masks = np.zeros((len(states), words), dtype=np.int32)
    vocabulary.executor.unsafe_compute_mask_ptr(
        [(state.matcher, row) for row, state in enumerate(states)],
        masks.ctypes.data,
        words * masks.itemsize,
        len(states),
    )
    for row, state in enumerate(states):
        if state.matcher.is_error():
            state.recover()
            fresh = np.frombuffer(state.matcher.compute_bitmask(), dtype=np.int32)
            masks[row] = fresh[:words]
    for row, token_ids in enumerate(held_back):
        if len(token_ids):
            rest = masks[row] & ~_bits(token_ids, words)
            masks[row] = rest if rest.any() else masks[row]
    return masks


def first_line(error: str) -> str:
    """The part of llguidance's message that a person can use."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    if not lines or lines[0].startswith("panic"):
        return "it is too large"
    # A regex error is a drawing of several lines, and only one says what is wrong.
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (told or lines)[0][:300].rstrip(".")


def _bits(token_ids: Sequence[int], words: int) -> NDArray[np.int32]:
    """A bitmask of some tokens, [words]."""
    ids = np.asarray(token_ids, dtype=np.int64)
    bits = np.zeros(words, dtype=np.uint32)
    np.bitwise_or.at(bits, ids // WORD_BITS, np.uint32(1) << (ids % WORD_BITS).astype(np.uint32))
    return bits.view(np.int32)
