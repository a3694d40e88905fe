"""How figures, times and states read to people. Templates use these as filters."""

from datetime import UTC, datetime, timedelta

from flask import Flask

from runner.domain.estimate import Basis, Estimate
from runner.domain.pricing import NANO
from runner.services.job_records import JobRecord

_PHASES = {
    "queued": "Waiting to be read",
    "reading": "Reading and checking the file",
    "waiting": "Waiting for its turn",
    "in_progress": "Running: the lines are being answered",
    "paused": "Paused",
    "finalizing": "Closing: the counts are proved and the files measured",
    "completed": "Done: every line has its answer or its error",
    "failed": "Refused: the file has faults, so no line was run",
    "expired": "Out of time: the lines that were not reached are listed as errors",
    "cancelling": "Stopping",
    "cancelled": "Cancelled: finished lines are kept, the others are listed as errors",
}
_STEPS = (
    ("Created", "created_at"),
    ("Running", "in_progress_at"),
    ("Closing", "finalizing_at"),
    ("Cancel asked", "cancelling_at"),
    ("Completed", "completed_at"),
    ("Failed", "failed_at"),
    ("Expired", "expired_at"),
    ("Cancelled", "cancelled_at"),
    ("Lines gone", "lines_removed_at"),
)


def register(app: Flask) -> None:
    """Give the filters to the templates of an application."""
    filters = (count, money, span, joules, clock, local_field, state_words, phase_words, timeline)
    for words in filters:
        app.add_template_filter(words)
    for expected in (cents, basis_words, end_of):
        app.add_template_filter(expected)


def count(number: int) -> str:
    """A whole number, readable at any length."""
    return f"{number:,}"


def money(nano: int) -> str:
    """Nano-units of the currency, exact, without zeros that say nothing."""
    whole, rest = divmod(abs(nano), NANO)
    digits = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{'−' if nano < 0 else ''}${whole:,}.{digits}"


def joules(microjoules: int) -> str:
    """An amount of energy, to three figures or so."""
    amount = microjoules / 1_000_000
    return f"{amount:,.0f} J" if amount >= 100 else f"{amount:.3g} J"


def cents(nano: int) -> str:
    """Nano-units of the currency to four figures or so, for what is expected and not owed."""
    units = nano / NANO
    if units >= 10 or nano == 0:
        return f"${units:,.2f}"
    if units >= 0.01:
        return f"${units:.4f}"
    return f"${units:.6f}".rstrip("0") if units >= 0.000001 else "under $0.000001"


def basis_words(told: Estimate) -> str:
    """What the expected output rests on, in a sentence."""
    match told.basis:
        case Basis.MAX_TOKENS:
            return "There is no history yet, so the likely output is all that was asked for."
        case Basis.MODEL:
            return f"The output rests on {told.history_lines:,} earlier lines of this model."
        case Basis.SCHEDULE:
            return f"The output rests on {told.history_lines:,} earlier lines of this schedule."


def end_of(told: Estimate) -> datetime | None:
    """The likely end, if it is known."""
    if told.made_at is None or told.wait_us is None:
        return None
    return told.made_at + timedelta(microseconds=told.wait_us.likely)


def span(micros: int | None) -> str:
    """A length of time, given in microseconds, to three figures or so."""
    if micros is None:
        return "–"
    seconds = micros / 1_000_000
    if seconds < 1:
        return f"{micros / 1000:.3g} ms" if micros < 999_500 else "1.00 s"
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def clock(moment: datetime, seconds: bool = True) -> str:
    """A moment, always in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def local_field(moment: datetime) -> str:
    """A moment as a ``datetime-local`` field holds it, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M")


def state_words(job: JobRecord) -> str:
    """The state in a word or two."""
    if job.pause_reason is not None:
        return "paused"
    return job.state.value.replace("_", " ")


def phase_words(job: JobRecord) -> str:
    """Where the job really is, in a sentence."""
    words = _PHASES.get(job.phase, job.phase)
    if job.gone:  # where lines are listed is no longer true
        words = words.partition(":")[0]
    return f"{words}. {job.phase_reason}" if job.phase_reason else f"{words}."


def timeline(job: JobRecord) -> list[tuple[str, datetime, int | None]]:
    """The moments of a job in order: a name, the time, microseconds since the one before."""
    known = [(name, getattr(job, field)) for name, field in _STEPS]
    steps: list[tuple[str, datetime, int | None]] = []
    for name, at in sorted((step for step in known if step[1]), key=lambda step: step[1]):
        since = at - steps[-1][1] if steps else None
        steps.append((name, at, None if since is None else round(since.total_seconds() * 1e6)))
    return steps
