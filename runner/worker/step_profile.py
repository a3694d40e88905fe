"""One order for a profile, seen by two threads: the step loop records, another waits for it."""

import threading

from runner.inference.backend import Backend, CannotProfile, Recording
from runner.worker.time_sheet import now_us


class StepProfile:
    """The next ``steps`` steps of a backend, or what comes of them in the given time.

    Steps without a line are none, so an idle worker records nothing; it ends at the time limit.
    """

    def __init__(self, steps: int, seconds: float) -> None:
        self._steps = steps
        self._ends_us = now_us() + int(seconds * 1_000_000)
        self._recording: Recording | None = None
        self.begun = threading.Event()
        self.ended = threading.Event()
        self.refusal: str | None = None
        self.steps_done = 0

    @property
    def recording(self) -> Recording | None:
        """What was recorded, once ``ended`` is set; None when there was no step."""
        return self._recording if self.ended.is_set() else None

    def before_step(self, backend: Backend) -> None:
        """Begin with the first step that has work (step loop only)."""
        if self.begun.is_set() or self.ended.is_set():
            return
        try:
            self._recording = backend.record()
        except CannotProfile as error:
            self.refusal = str(error)
            self.ended.set()
        else:
            self.begun.set()

    def after_step(self) -> None:
        """Count a step, and end with the last one (step loop only)."""
        if self.begun.is_set() and not self.ended.is_set():
            self.steps_done += 1
            if self.steps_done >= self._steps:
                self.end()

    def end_when_late(self) -> None:
        """End at the time limit, whatever has been recorded (step loop only)."""
        if now_us() >= self._ends_us:
            self.end()

    def end(self) -> None:
        """Record no more (step loop only)."""
        if not self.ended.is_set():
            if self._recording is not None:
                self._recording.end()
            self.ended.set()
