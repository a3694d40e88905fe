"""Batches that are followed to their end, with every state that was seen on the way."""

import json
import time
from dataclasses import dataclass
from typing import Any

from openai import OpenAI
from openai.types import Batch

from runner.conformance.verdicts import Fault

ENDED = ("completed", "failed", "expired", "cancelled")
_PATIENCE = 300.0  # seconds that a batch may take
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Run:
    """A batch as it was in every poll, the last of them at its end."""

    polls: list[Batch]

    @property
    def end(self) -> Batch:
        """The batch at its end."""
        return self.polls[-1]


def follow(client: OpenAI, batch: Batch, wanted: tuple[str, ...] = ENDED) -> Run:
    """Poll a batch until its status is one of those wanted, or it has ended."""
    polls, pause, deadline = [batch], _FIRST_PAUSE, time.monotonic() + _PATIENCE
    while polls[-1].status not in (*wanted, *ENDED):
        if time.monotonic() > deadline:
            raise Fault(f"{batch.id} to end within {_PATIENCE:.0f} s", polls[-1].status)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        polls.append(client.batches.retrieve(batch.id))
    return Run(polls)


def lines_of(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of a result file; none where there is no file."""
    if not file_id:
        return []
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
