"""The one seam between the worker and whatever generates tokens."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from runner.domain.lanes import Lane
from runner.domain.leases import ItemInput, Lease, LineMetrics
from runner.inference.prompts import TokenisedLine
from runner.inference.requests import LineRequest


@dataclass(frozen=True, slots=True)
class Task:
    """A line ready to run: parsed, and its prompts as token ids.

    ``key`` is unique within a worker's life. ``truncated_tokens`` were cut off its prompts.
    ``grammar`` is what the backend made of the form that the answers must have; nobody else looks
    into it.
    """

    key: str
    lease: Lease
    idx: int
    custom_id: str
    request: LineRequest
    prompts: tuple[tuple[int, ...], ...]
    truncated_tokens: int = 0
    grammar: object = None

    @classmethod
    def of(
        cls, lease: Lease, item: ItemInput, line: TokenisedLine, grammar: object = None
    ) -> "Task":
        """The task of a line under a lease."""
        return cls(
            key=f"{lease.key.job_id}/{item.idx}/{lease.key.epoch}",
            lease=lease,
            idx=item.idx,
            custom_id=item.custom_id,
            request=line.request,
            prompts=line.token_ids,
            truncated_tokens=line.truncated_tokens,
            grammar=grammar,
        )

    def prompt_text(self) -> str:
        """What its prompts say, for whoever looks for a text in them; never for logs."""
        said = []
        for prompt in self.request.prompts:
            messages = prompt.messages or ()
            said += [prompt.text or "", *(str(message.get("content")) for message in messages)]
        return "\n".join(said)


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How likely a model finds a token, given by its bytes: they may be part of a character."""

    token: bytes
    logprob: float  # natural logarithm


@dataclass(frozen=True, slots=True)
class TokenLikelihood:
    """An output token with the tokens that were likeliest in its place, best first."""

    taken: Likelihood
    top: tuple[Likelihood, ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One function that a model wants called; ``arguments`` is a JSON object as it wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model said in one choice of a line; ``likelihoods`` are of its tokens, if asked.

    ``text`` is what it said beside its calls. ``vector`` is what it made of a prompt instead, where
    that was asked for: little-endian float32.
    """

    text: str
    finish_reason: str  # stop | length | tool_calls
    likelihoods: tuple[TokenLikelihood, ...] | None = None
    vector: bytes = b""
    tool_calls: tuple[ToolCall, ...] = ()


class LineRefusal(Exception):
    """A line that cannot be answered: the HTTP status and error its result will carry."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one task: the completion of each of its choices, or a refusal, and what it took.

    The choices of a prompt are neighbours, in the order of the prompts.
    """

    task: Task
    answer: tuple[Completion, ...] | LineRefusal
    metrics: LineMetrics


class CannotProfile(Exception):
    """This backend does nothing that a profile could show; the sentence says so."""


class Recording(Protocol):
    """What a backend does from now on, until ``end``."""

    def end(self) -> None:
        """Record no more (the thread that steps)."""

    def trace(self) -> bytes:
        """A Chrome trace, compressed by gzip, without prompts and outputs (any thread, slow)."""


class Backend(Protocol):
    """A model that runs many tasks at once. ``prepare`` may be called from another thread."""

    rows: int  # sequences it runs at once
    description: str
    lane: Lane
    gpu_uuid: str | None  # of the NVIDIA GPU that computes, by which its driver knows it

    def prepare(self, lease: Lease, item: ItemInput) -> Task:
        """Parse and tokenise a line.

        Raises:
            LineRefusal: this line cannot be answered; no other line is touched.
        """

    def submit(self, task: Task) -> None:
        """Queue a task.

        Raises:
            LineRefusal: the model cannot take it (too long, a bad parameter).
        """

    def step(self) -> list[Outcome]:
        """Do one step's work; returns the tasks that ended in it."""

    def abort(self, keys: Iterable[str]) -> int:
        """Drop tasks at once; returns the device microseconds they had cost."""

    @property
    def unfinished(self) -> int:
        """Sequences submitted and not ended: choices of tasks."""

    def expect_more(self, more: bool) -> None:
        """Whether tasks will follow those in hand; if not, their order may serve a short end."""

    def record(self) -> Recording:
        """Begin to record the steps that follow, for a profile.

        Raises:
            CannotProfile: there is nothing to record in this backend.
        """

    def stats(self) -> Mapping[str, float]:
        """Counters and gauges for the worker's row."""

    def close(self) -> None:
        """Let go of the model and its memory; nothing may be called after it."""
