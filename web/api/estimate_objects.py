"""Estimates as the wire has them: what was expected, and what it became."""

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from web.api.objects import Amount, BatchError, Count, UnixSeconds


class CountRange(TypedDict):
    """A number that is rarely undercut, the likely one, and one that is rarely passed."""

    low: Count
    likely: Count
    high: Count


class AmountRange(TypedDict):
    """An amount that is rarely undercut, the likely one, and one that is rarely passed."""

    low: Amount
    likely: Amount
    high: Amount


class SecondsRange(TypedDict):
    """Seconds that are rarely undercut, the likely ones, and those that are rarely passed."""

    low: Annotated[float, Meta(ge=0)]
    likely: Annotated[float, Meta(ge=0)]
    high: Annotated[float, Meta(ge=0)]


class EstimateObject(TypedDict):
    """What lines are expected to take. What is called ``most`` is never passed.

    ``is_exact`` tells that every prompt was counted with the model's own tokenizer. ``basis`` is
    what the output rests on: earlier runs of the ``schedule``, earlier jobs of the project with
    the ``model``, or ``max_tokens``: all that was asked for. Times are null while no worker runs
    the model or its speed was never measured; ``ends_at`` is the likely end. ``reused_lines`` take
    the answers of others, beside ``lines``: of all figures only money counts them.
    """

    lines: Count
    reused_lines: Count
    input_tokens: Count
    input_tokens_most: Count
    is_exact: bool
    cached_tokens: Count
    longest_prompt: Count
    output_tokens: CountRange
    output_tokens_most: Count
    basis: Annotated[str, Meta(extra_json_schema={"enum": ["schedule", "model", "max_tokens"]})]
    history_lines: Count
    currency: str
    billed: AmountRange
    billed_most: Amount
    run: AmountRange | None
    device_seconds: SecondsRange | None
    seconds_to_end: SecondsRange | None
    ends_at: UnixSeconds | None
    made_at: UnixSeconds | None


class ActualObject(TypedDict):
    """What a batch took in the end; ``reused_lines``, beside ``lines``, took others' answers."""

    lines: Count
    reused_lines: Count
    input_tokens: Count
    cached_tokens: Count
    output_tokens: Count
    billed: Amount
    run: Amount
    device_seconds: Annotated[float, Meta(ge=0)]
    run_seconds: Annotated[float, Meta(ge=0)] | None


class BatchEstimate(TypedDict):
    """The estimate given before the run, the newest one while it lasts, and what it came to.

    ``given`` becomes exact once all prompts are counted, and then stays.
    """

    given: EstimateObject
    newest: EstimateObject | None
    actual: ActualObject | None
    is_counted: bool
    too_long_lines: Count
    refused_lines: Count


class EstimateAnswer(TypedDict):
    """What a file would take as a batch. Line numbers count from 1, without blank lines.

    ``model`` is null where lines name several ``models``. ``lines_counted`` were counted exactly
    before the time for it was over. ``too_long`` names the first hundred lines whose prompt leaves
    no room for an answer; ``faults`` are what reading the file would find, the first twenty of
    them. ``equal_lines`` would not be computed with ``dedupe``; the estimate is without it.
    """

    object: Literal["estimate"]
    endpoint: str
    model: str | None
    models: list[str]
    lines_counted: Count
    too_long_lines: Count
    too_long: list[Annotated[int, Meta(ge=1)]]
    refused_lines: Count
    equal_lines: Count
    fault_count: Count
    faults: list[BatchError]
    estimate: EstimateObject
