"""Watching a job until it ends: a bar on a terminal, a line every ten seconds otherwise."""

import time
from collections.abc import Callable

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from runner.cli.console import money, progress_console
from runner.services.job_records import JobRecord
from runner.services.job_totals import Totals

_POLL_SECONDS = 0.5
_PLAIN_SECONDS = 10.0


class Pace:
    """How fast a job goes while it is watched; what was done before does not count as fast."""

    def __init__(self, start: Totals, now: float) -> None:
        self._start = start
        self._started = now

    def told(self, total: int, totals: Totals, now: float) -> str:
        """Tokens per second, the time left (or passed), the cost so far. ``now`` in seconds."""
        seconds = max(now - self._started, 1e-9)
        tokens = totals.output_tokens - self._start.output_tokens
        parts = [f"{tokens / seconds:,.0f} tokens/s"]
        done = _done(totals) - _done(self._start)
        left = total - _done(totals)
        has_pace = done > 0 and left > 0
        parts.append(f"ETA {_clock(left * seconds / done)}" if has_pace else _clock(seconds))
        parts.append(f"cost {money(totals.billed_nano)}")
        return "  ".join(parts)


def watch(look: Callable[[], JobRecord]) -> JobRecord:
    """Poll a job until it is terminal, showing where it is."""
    return _watch_with_bar(look) if progress_console.is_terminal else _watch_plainly(look)


def _watch_with_bar(look: Callable[[], JobRecord]) -> JobRecord:
    columns = (
        TextColumn("{task.description:<11}"),
        BarColumn(bar_width=10),  # all of it fits into 80 letters
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    with Progress(*columns, console=progress_console) as progress:
        bar = progress.add_task("validating", total=None, rate="")
        job = look()
        pace = Pace(job.totals, time.monotonic())
        while True:
            progress.update(
                bar,
                description=job.phase,
                total=job.total or None,
                completed=_done(job.totals),
                rate=pace.told(job.total, job.totals, time.monotonic()),
            )
            if job.state.is_terminal:
                return job
            time.sleep(_POLL_SECONDS)
            job = look()


def _watch_plainly(look: Callable[[], JobRecord]) -> JobRecord:
    started = time.monotonic()
    told_at = -_PLAIN_SECONDS
    job = look()
    pace = Pace(job.totals, started)
    while True:
        elapsed = time.monotonic() - started
        if elapsed - told_at >= _PLAIN_SECONDS or job.state.is_terminal:
            told_at = elapsed
            lines = f"{_done(job.totals)}/{job.total} lines"
            told = pace.told(job.total, job.totals, started + elapsed)
            progress_console.print(
                f"{elapsed:6.0f} s  {job.phase}  {lines}  {told}", highlight=False, soft_wrap=True
            )
        if job.state.is_terminal:
            return job
        time.sleep(_POLL_SECONDS)
        job = look()


def _done(totals: Totals) -> int:
    return totals.succeeded + totals.failed


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
