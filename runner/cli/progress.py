"""Watching a job until it ends: a bar on a terminal, a line every ten seconds otherwise."""

import time
from collections.abc import Callable

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from runner.cli.console import progress_console
from runner.services.job_records import JobRecord

_POLL_SECONDS = 0.5
_PLAIN_SECONDS = 10.0


def watch(look: Callable[[], JobRecord]) -> JobRecord:
    """Poll a job until it is terminal, showing where it is."""
    return _watch_with_bar(look) if progress_console.is_terminal else _watch_plainly(look)


def _watch_with_bar(look: Callable[[], JobRecord]) -> JobRecord:
    columns = (
        TextColumn("{task.description:<11}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("lines  {task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=progress_console) as progress:
        bar = progress.add_task("validating", total=None, rate="")
        started = time.monotonic()
        while True:
            job = look()
            progress.update(
                bar,
                description=job.phase,
                total=job.total or None,
                completed=job.totals.succeeded + job.totals.failed,
                rate=_rate(job, time.monotonic() - started),
            )
            if job.state.is_terminal:
                return job
            time.sleep(_POLL_SECONDS)


def _watch_plainly(look: Callable[[], JobRecord]) -> JobRecord:
    started = time.monotonic()
    told_at = -_PLAIN_SECONDS
    while True:
        job = look()
        elapsed = time.monotonic() - started
        if elapsed - told_at >= _PLAIN_SECONDS or job.state.is_terminal:
            told_at = elapsed
            done = job.totals.succeeded + job.totals.failed
            progress_console.print(
                f"{elapsed:6.0f} s  {job.phase}  {done}/{job.total} lines  {_rate(job, elapsed)}",
                highlight=False,
            )
        if job.state.is_terminal:
            return job
        time.sleep(_POLL_SECONDS)


def _rate(job: JobRecord, elapsed: float) -> str:
    return f"{job.totals.output_tokens / max(elapsed, 1e-9):,.0f} tokens/s"
