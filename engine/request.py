"""One sequence on its way through the engine: its tokens, its blocks and its marks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from engine.grammar import GrammarState
from engine.logit_edits import LogitEdits
from engine.pooling import PooledStates
from engine.proposer import NgramProposer
from engine.sampling_params import SamplingParams
from engine.token_logprobs import TokenLogprobs


class RequestStatus(StrEnum):
    """Where a request stands; a preempted request is waiting again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and its continuation.

    Attributes:
        token_ids: every known token: the prompt, then the output.
        num_computed_tokens: known tokens whose keys and values are in the cache.
        block_table: ids of the blocks that hold them, in order.
        block_hashes: chained hashes of the full blocks, as far as they were needed.
        max_computed_tokens: high-water mark of `num_computed_tokens`; work below it is repeated.
        arrival_us, first_scheduled_us, first_token_us: clock marks in microseconds.
        device_us: this request's share of step wall time, in microseconds.
        edits: what it wants changed in its logits, or None.
        logprobs: of each output token, if the request asks for them.
        pooled: what it wants instead of output tokens: its prompt's hidden states, pooled.
        guesses: tokens that it supposes to follow the known ones in the planned step, else empty.
        proposer: where its guesses come from, once it has asked for some.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    priority: int = 0
    arrival_us: int = 0
    edits: LogitEdits | None = None
    pooled: PooledStates | None = None

    status: RequestStatus = RequestStatus.WAITING
    token_ids: list[int] = field(init=False)
    num_computed_tokens: int = 0
    max_computed_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)

    first_scheduled_us: int | None = None
    first_token_us: int | None = None
    device_us: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    guesses: list[int] = field(default_factory=list)
    proposer: NgramProposer | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def grammar(self) -> GrammarState | None:
        """Where the output stands in its grammar, if it has one."""
        return None if self.edits is None else self.edits.grammar

    @property
    def takes_likeliest(self) -> bool:
        """Whether its next token is the likeliest one, and no more is asked of it than that."""
        params, edits = self.params, self.edits
        wants_token = self.pooled is None and params.is_greedy and params.logprobs is None
        return wants_token and (edits is None or not edits.has_any)

    def append(self, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        """Take in a new output token."""
        self.token_ids.append(token_id)
        if self.edits is not None:
            self.edits.add(token_id)
        if logprobs is not None:
            self.logprobs.append(logprobs)

    def advance(self, num_tokens: int) -> None:
        """Count `num_tokens` more as computed."""
        start = self.num_computed_tokens
        end = start + num_tokens
        self.num_recomputed_tokens += max(0, min(end, self.max_computed_tokens) - start)
        self.num_computed_tokens = end
        self.max_computed_tokens = max(end, self.max_computed_tokens)

    def copy_answer(self, original: "Request", now_us: int) -> None:
        """Take the answer of an equal request; nothing was computed for this one.

        It waited until the original started, and has been served from the cache since.
        """
        self.token_ids = original.token_ids
        self.num_cached_tokens = self.num_prompt_tokens
        self._follow(original, now_us)

    def take_over(self, original: "Request", now_us: int) -> None:
        """Go on where an equal request that was aborted stood, as if preempted there."""
        self.token_ids = original.token_ids
        self.edits = original.edits
        self.pooled = original.pooled
        self.logprobs = original.logprobs
        self.block_hashes = original.block_hashes
        self.proposer = original.proposer
        self.max_computed_tokens = original.max_computed_tokens
        if original.first_scheduled_us is not None:
            self.num_cached_tokens = original.num_cached_tokens
            self._follow(original, now_us)

    def _follow(self, original: "Request", now_us: int) -> None:
        """The original's marks, as far as this request was there."""
        scheduled, first_token = original.first_scheduled_us, original.first_token_us
        self.first_scheduled_us = max(self.arrival_us, now_us if scheduled is None else scheduled)
        if first_token is not None:
            self.first_token_us = max(self.first_scheduled_us, first_token)
