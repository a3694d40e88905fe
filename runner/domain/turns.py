"""Whose turn it is: which jobs the next shards of a model are taken from.

Priority comes first, always. Among jobs of one priority each shard goes to the project that has had
the least device time of late, in proportion to its weight: a deficit round in the sense of
Shreedhar and Varghese, "Efficient fair queuing using deficit round-robin" (1995), with a memory
that fades, so that a project that was away has no claim on yesterday. A job that may miss its
deadline makes its project weigh up to four times as much, which starves nobody. Within a project
the nearest deadline goes first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from runner.domain.ids import JobId, ModelId, ProjectId

_FIRST_GUESS_US = 1_000_000.0  # device time of a line, while none has ended
_MOST_PRESSED = 4.0


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job with shards of a model to lease. ``shards`` and ``shard_lines`` are estimates."""

    id: JobId
    model_id: ModelId
    project_id: ProjectId
    weight: int
    priority: int
    expires_at: datetime
    seconds_left: float
    shards: int
    shard_lines: int


@dataclass(frozen=True, slots=True)
class Served:
    """What a project has had: faded device microseconds and lines, and lines in hand just now."""

    device_us: float = 0.0
    lines: float = 0.0
    lines_in_hand: int = 0


class Turns:
    """Hands out turns; each one given is counted as if its lines had run."""

    def __init__(self, jobs: Sequence[WaitingJob], served: Mapping[ProjectId, Served]) -> None:
        self._jobs = list(jobs)
        lines = sum(each.lines for each in served.values())
        time = sum(each.device_us for each in served.values())
        self._usual_us = time / lines if lines else _FIRST_GUESS_US
        self._line_us = {project: self._mean(each) for project, each in served.items()}
        self._had_us = {
            project: each.device_us + each.lines_in_hand * self._line_us[project]
            for project, each in served.items()
        }

    def order(self) -> list[WaitingJob]:
        """All jobs, the next to be served first."""
        return sorted(self._jobs, key=self._rank)

    def hand_out(self, shards: int) -> Iterator[JobId]:
        """The job of each of the next shards."""
        for _ in range(shards):
            if not self._jobs:
                return
            place = min(range(len(self._jobs)), key=lambda n: self._rank(self._jobs[n]))
            job = self._jobs[place]
            had = self._had_us.get(job.project_id, 0.0)
            self._had_us[job.project_id] = had + job.shard_lines * self._line_time(job)
            if job.shards > 1:
                self._jobs[place] = replace(job, shards=job.shards - 1)
            else:
                del self._jobs[place]
            yield job.id

    def seconds_of(self, job: WaitingJob) -> float:
        """The device time that what waits of a job will take, by what its project's lines took."""
        return job.shards * job.shard_lines * self._line_time(job) / 1e6

    def _rank(self, job: WaitingJob) -> tuple[int, float, datetime, JobId]:
        had = self._had_us.get(job.project_id, 0.0)
        return (-job.priority, had / (job.weight * self._pressure(job)), job.expires_at, job.id)

    def _pressure(self, job: WaitingJob) -> float:
        """1 while the work left needs less than half of the time left, 4 when it needs all."""
        share = self.seconds_of(job) / job.seconds_left if job.seconds_left > 0 else 1.0
        return 1.0 + (_MOST_PRESSED - 1.0) * min(max(2.0 * share - 1.0, 0.0), 1.0)

    def _line_time(self, job: WaitingJob) -> float:
        return self._line_us.get(job.project_id, self._usual_us)

    def _mean(self, served: Served) -> float:
        return served.device_us / served.lines if served.lines else self._usual_us
