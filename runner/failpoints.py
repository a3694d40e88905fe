"""Fail-points: named places where a process can be told to crash, fail or dawdle, for tests.

A plan says what happens where: ``NAME[@TEXT]=ACTION[:WHEN]``, several separated by commas.
ACTION is ``exit`` (at once, nothing is cleaned up), ``kill`` (SIGKILL), ``error`` (an exception) or
``delay-250`` (milliseconds). WHEN is a number (that hit of each process; ``1`` if left out), ``*``
(every hit) or ``once`` (the first hit of the whole installation, of whichever process). With
``@TEXT`` only hits count that are about a prompt which holds the text.

What is armed belongs to the process as such, like its signal handlers: a crash ends all of it.
"""

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from threading import Lock

logger = logging.getLogger(__name__)

EXIT_STATUS = 87  # of a process that a fail-point ended


class FailPoint(StrEnum):
    """Every place, named by what is under way and how far it has come."""

    UPLOAD_BETWEEN_CHUNKS = "upload.between_chunks"
    UPLOAD_BEFORE_COMMIT = "upload.before_commit"
    UPLOAD_JOINED = "upload.joined"  # the parts are a file, the upload does not say so yet
    CREATE_BEFORE_COMMIT = "create.before_commit"
    CANCEL_BEFORE_COMMIT = "cancel.before_commit"
    ANSWER_AFTER_COMMIT = "answer.after_commit"  # done, but the caller does not know
    RING_INGEST = "ring.ingest"  # each after the commit, before the message
    RING_FINALISE = "ring.finalise"
    RING_WAKE = "ring.wake"
    RING_CANCEL = "ring.cancel"
    INGEST_BEFORE_COPY = "ingest.before_copy"
    INGEST_MID_COPY = "ingest.mid_copy"
    INGEST_BEFORE_COMMIT = "ingest.before_commit"
    INGEST_AFTER_COMMIT = "ingest.after_commit"
    COPIES_BEFORE_COMMIT = "copies.before_commit"  # lines have taken the answers of others
    COUNT_AFTER_CLAIM = "count.after_claim"
    COUNT_BEFORE_COMMIT = "count.before_commit"
    CLAIM_BEFORE_COMMIT = "claim.before_commit"
    CLAIM_AFTER_COMMIT = "claim.after_commit"
    ENGINE_SUBMIT = "engine.submit"  # a line enters the engine; has its prompt
    RESULTS_BEFORE_COMMIT = "results.before_commit"
    RESULTS_AFTER_COMMIT = "results.after_commit"
    HEARTBEAT_BEFORE_COMMIT = "heartbeat.before_commit"
    GIVE_BACK_BEFORE_COMMIT = "give_back.before_commit"
    DRAINED_BEFORE_COMMIT = "drained.before_commit"  # the last shard is done, the job not told
    CLOSE_BEFORE_VIEWS = "close.before_views"
    CLOSE_BEFORE_TOTALS = "close.before_totals"
    CLOSE_BEFORE_COMMIT = "close.before_commit"
    DEATH_BEFORE_REPORT = "death.before_report"
    DEATH_BEFORE_COMMIT = "death.before_commit"
    REAP_BEFORE_COMMIT = "reap.before_commit"
    REAP_BETWEEN_HALVES = "reap.between_halves"  # a suspect is gone, its halves not there yet
    PLAN_BEFORE_COMMIT = "plan.before_commit"
    RUN_BEFORE_COMMIT = "run.before_commit"  # a planned time has its job
    OUTPUT_BEFORE_COMMIT = "output.before_commit"  # it is written, and not noted yet
    TICK_BETWEEN_STEPS = "tick.between_steps"
    HOUSE_BETWEEN_CHORES = "house.between_chores"
    MIGRATE_BEFORE_COMMIT = "migrate.before_commit"
    MIGRATE_BEFORE_PARTITIONS = "migrate.before_partitions"


class Action(StrEnum):
    """What happens at a fail-point."""

    EXIT = "exit"
    KILL = "kill"
    ERROR = "error"
    DELAY = "delay"


class FailPointReached(Exception):
    """The error that ``error`` raises; nothing expects it."""


@dataclass(frozen=True, slots=True)
class Order:
    """One entry of a plan. ``nth`` is 0 for every hit, None for once in the installation."""

    point: FailPoint
    action: Action
    nth: int | None = 1
    text: str = ""
    delay_seconds: float = 0.0


def parse_plan(plan: str) -> tuple[Order, ...]:
    """The orders of a plan.

    Raises:
        ValueError: an entry is not understood, or names no fail-point; the message lists them.
    """
    return tuple(_parse_order(entry.strip()) for entry in plan.split(",") if entry.strip())


def _parse_order(entry: str) -> Order:
    place, _, deed = entry.partition("=")
    name, _, text = place.partition("@")
    action, _, when = deed.partition(":")
    action, _, milliseconds = action.partition("-")
    if name not in set(FailPoint):
        raise ValueError(f"There is no fail-point {name!r}. There are: {', '.join(FailPoint)}.")
    if action not in set(Action) or (action == Action.DELAY) != milliseconds.isdecimal():
        raise ValueError(f"{entry!r}: the action must be exit, kill, error or delay-MILLISECONDS.")
    return Order(
        FailPoint(name), Action(action), _parse_when(entry, when), text, _seconds(milliseconds)
    )


def _parse_when(entry: str, when: str) -> int | None:
    match when:
        case "":
            return 1
        case "*":
            return 0
        case "once":
            return None
        case _ if when.isdecimal() and int(when) > 0:
            return int(when)
    raise ValueError(f"{entry!r}: after the colon comes the number of a hit, * or once.")


def _seconds(milliseconds: str) -> float:
    return int(milliseconds) / 1000 if milliseconds else 0.0


class FailPoints:
    """The armed orders of a process and how often each was met."""

    def __init__(self) -> None:
        self._orders: dict[FailPoint, list[Order]] = {}
        self._hits: Counter[Order] = Counter()
        self._lock = Lock()
        self._marks = Path()

    def arm(self, orders: Sequence[Order], marks: Path) -> None:
        """Take these orders and no others; ``marks`` is the folder that remembers ``once``."""
        with self._lock:
            self._orders = {}
            for order in orders:
                self._orders.setdefault(order.point, []).append(order)
            self._hits.clear()
            self._marks = marks

    def hit(self, point: FailPoint, prompt: Callable[[], str] | None = None) -> None:
        """This place is reached; ``prompt`` tells which text it is about."""
        for order in self._orders.get(point, ()):
            if order.text and (prompt is None or order.text not in prompt()):
                continue
            if self._is_due(order):
                _carry_out(order)

    def _is_due(self, order: Order) -> bool:
        if order.nth is None:
            return self._mark(order)
        with self._lock:
            self._hits[order] += 1
            return order.nth in (0, self._hits[order])

    def _mark(self, order: Order) -> bool:
        """Leave a mark; False when it is there already."""
        self._marks.mkdir(parents=True, exist_ok=True)
        try:
            (self._marks / order.point).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _carry_out(order: Order) -> None:
    logger.warning("Fail-point %s: %s.", order.point, order.action, extra={"action": "fail_point"})
    match order.action:
        case Action.EXIT:
            os._exit(EXIT_STATUS)
        case Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Action.ERROR:
            raise FailPointReached(f"fail-point {order.point}")
        case Action.DELAY:
            time.sleep(order.delay_seconds)


def forget_marks(marks: Path) -> None:
    """Let every ``once`` come true again."""
    for mark in marks.glob("*"):
        mark.unlink(missing_ok=True)


_process = FailPoints()
arm = _process.arm
hit = _process.hit
