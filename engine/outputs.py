"""What leaves the engine: a request's result with its metrics, and the engine's statistics."""

from dataclasses import dataclass
from enum import StrEnum

from engine.errors import EngineError
from engine.pooling import Vector
from engine.request import Request
from engine.token_logprobs import TokenLogprobs


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """What one request took. Times are whole microseconds.

    `queue_us + prefill_us + decode_us == total_us` always holds. `first_token_us` runs from
    arrival to the first output token and is 0 when there was none. `device_us` is the request's
    share of the wall time of the steps it took part in.
    """

    queue_us: int
    prefill_us: int
    first_token_us: int
    decode_us: int
    total_us: int
    device_us: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    recomputed_tokens: int

    @classmethod
    def of(cls, request: Request, now_us: int) -> "RequestMetrics":
        """Read the marks of a request that ends at `now_us`."""
        first_token = request.first_token_us
        decode_start = now_us if first_token is None else first_token
        scheduled = request.first_scheduled_us
        queue_end = now_us if scheduled is None else scheduled
        return cls(
            queue_us=queue_end - request.arrival_us,
            prefill_us=decode_start - queue_end,
            first_token_us=0 if first_token is None else first_token - request.arrival_us,
            decode_us=now_us - decode_start,
            total_us=now_us - request.arrival_us,
            device_us=request.device_us,
            prompt_tokens=request.num_prompt_tokens,
            cached_tokens=request.num_cached_tokens,
            output_tokens=request.num_output_tokens,
            preemptions=request.num_preemptions,
            recomputed_tokens=request.num_recomputed_tokens,
        )


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The terminal answer of one request; `error` is set when the reason is ERROR.

    `logprobs` has an entry for each of `token_ids`, or is None where they were not asked for.
    `embedding` is the pooled prompt, float32 of length 1, for requests that asked for it and ended
    well; they have no output tokens.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    error: EngineError | None
    metrics: RequestMetrics
    logprobs: tuple[TokenLogprobs, ...] | None = None
    embedding: Vector | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A reading of the engine; counters run from its start, times are microseconds.

    `copies` counts requests that were answered with what was computed for an equal one; their
    prompt tokens count here, their output tokens were not made.
    Output tokens count when they are made, prompt tokens when their request ends.
    `guessed_tokens` were computed on the supposition that they follow, `held_tokens` of them did;
    neither is counted anywhere else unless it held, and then as the output token that it is.
    `kv_blocks_used` counts referenced blocks; cached blocks that no request holds are free.
    `host_us` is the part of `busy_us` that is not the runner's: scheduling, taking tokens in, and
    what the caller does between two steps while there is work.
    `fragmentation` is the share of token slots in used blocks that hold no token yet.
    """

    running: int
    waiting: int
    steps: int
    kv_blocks_total: int
    kv_blocks_used: int
    kv_utilization: float
    fragmentation: float
    prefix_hit_tokens: int
    prefix_query_tokens: int
    preemptions: int
    recomputed_tokens: int
    prompt_tokens: int
    output_tokens: int
    copies: int
    guessed_tokens: int
    held_tokens: int
    last_step_us: int
    busy_us: int
    host_us: int
