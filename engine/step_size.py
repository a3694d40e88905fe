"""How many rows and tokens a step should have: found by timing the model when it has loaded.

More rows and tokens share each read of the weights, until the arithmetic is the limit; beyond that
they only make the step longer, and with it the wait for an urgent line or a cancel.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from engine.config import EngineConfig
from engine.kept_sizes import KeptSizes, StepSizes
from engine.model_runner import Runner
from engine.request import Request
from engine.sampling_params import SamplingParams

SMALLEST = 16
"""Rows or tokens of the first step that is timed."""
ENOUGH = 0.95
"""A smaller step that gives this share of the best rate is taken."""
DECODE_SHARE = 0.5
"""Of a step's time, what the rows may take before they have a context to attend to."""
RUNS = 2
"""The better of so many is taken, for the first one also warms up."""
DRIFT = 2.0
"""Kept sizes hold while a step is less than so many times slower or faster than it was; the speed
of virtual machines drifts by nearly as much."""
TRIES = 4
"""So many steps may be too slow: the first one also warms up, and an installation that starts
takes the cores with all of its processes."""


def fit_step(
    runner: Runner, config: EngineConfig, num_blocks: int, max_model_len: int
) -> EngineConfig:
    """`config` with the rows, tokens and chunk of a step lowered until one ends in `step_seconds`.

    The pool of `num_blocks` must be empty and is left so; what is written to it means nothing. A
    step of the smallest size is allowed whatever it takes.
    """
    assert config.step_seconds is not None, "nothing to fit"
    probe = _Probe(runner, config.block_size, max_model_len)
    most_rows = min(config.max_num_seqs, num_blocks)
    prompt_blocks = -(-max_model_len // config.block_size)
    most_tokens = num_blocks * config.block_size
    if prompt_blocks <= num_blocks:  # whole prompts, whose last blocks may not be full
        most_tokens = num_blocks // prompt_blocks * max_model_len
    most_tokens = min(config.max_num_batched_tokens, most_tokens)
    kept = KeptSizes(config, most_rows, most_tokens)
    sizes = kept.read()
    if sizes is None or not probe.confirms(sizes):
        rows, _ = best_size(probe.decode, most_rows, config.step_seconds * DECODE_SHARE)
        sizes = StepSizes(rows, *best_size(probe.prefill, most_tokens, config.step_seconds))
        kept.write(sizes)
    # Where every row decodes, a waiting prompt must still get a chunk.
    tokens = max(sizes.tokens, min(2 * sizes.rows, config.max_num_batched_tokens))
    return replace(
        config,
        max_num_seqs=sizes.rows,
        max_num_batched_tokens=tokens,
        long_prefill_tokens=min(config.long_prefill_tokens, tokens),
    )


def best_size(timed: Callable[[int], float], most: int, seconds: float) -> tuple[int, float]:
    """The smallest size near the best rate among those that end in time, and what it took.

    Each size that is tried is twice the last.
    """
    sizes = [min(SMALLEST, most)]
    took = [timed(sizes[0])]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
        took.append(timed(sizes[-1]))
        if took[-1] > seconds:
            del sizes[-1], took[-1]
            break
    rates = [size / spent for size, spent in zip(sizes, took, strict=True)]
    best = next(index for index, rate in enumerate(rates) if rate >= ENOUGH * max(rates))
    return sizes[best], took[best]


def still_takes(timed: Callable[[], float], seconds: float) -> bool:
    """Whether one of a few steps takes about so long; they end with one that is not too slow."""
    for _ in range(TRIES):
        spent = timed()
        if spent < seconds * DRIFT:
            return spent > seconds / DRIFT
    return False


class _Probe:
    """Times steps of made-up requests."""

    def __init__(self, runner: Runner, block_size: int, max_model_len: int) -> None:
        self._runner = runner
        self._block_size = block_size
        self._max_model_len = max_model_len

    def decode(self, rows: int) -> float:
        """Seconds of a step of so many sequences of one token."""
        return self._time([self._request(1, row) for row in range(rows)], [1] * rows, RUNS)

    def prefill(self, tokens: int, runs: int = RUNS) -> float:
        """Seconds of a step of one prompt, or of as many as it takes."""
        longest = self._max_model_len
        lengths = [longest] * (tokens // longest) + [tokens % longest] * (tokens % longest > 0)
        blocks = -(-longest // self._block_size)
        requests = [self._request(n, i * blocks) for i, n in enumerate(lengths)]
        return self._time(requests, lengths, runs)

    def confirms(self, sizes: StepSizes) -> bool:
        """Whether the largest step takes about what it took when the sizes were found."""
        return still_takes(lambda: self.prefill(sizes.tokens, runs=1), sizes.seconds)

    def _request(self, tokens: int, first_block: int) -> Request:
        request = Request(f"probe-{first_block}", [0] * tokens, SamplingParams(max_tokens=1))
        blocks = -(-tokens // self._block_size)
        request.block_table = list(range(first_block, first_block + blocks))
        return request

    def _time(self, requests: list[Request], num_tokens: list[int], runs: int) -> float:
        spent = []
        for _ in range(runs):
            started = time.perf_counter()
            self._runner.run(requests, num_tokens)
            spent.append(time.perf_counter() - started)
        return min(spent)
