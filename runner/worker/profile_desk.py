"""The thread that takes orders for profiles, hands them to the step loop and stores the traces."""

import logging

from sqlalchemy.exc import OperationalError

from runner.services import profiles
from runner.services.profiles import MAX_TRACE_BYTES, Order
from runner.worker.context import WorkerContext
from runner.worker.step_loop import StepLoop
from runner.worker.step_profile import StepProfile

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1


class ProfileDesk:
    """Serves one order at a time, until stopped. No fault of a profile is one of the worker."""

    def __init__(self, context: WorkerContext, loop: StepLoop) -> None:
        self._context = context
        self._loop = loop
        self._stopped = False

    def stop(self) -> None:
        """End; an order that is being recorded ends with what it has once the loop stops."""
        self._stopped = True
        self._context.profile.set()

    def run(self) -> None:
        """Look for an order at every ring, and now and then, should a ring be lost."""
        context = self._context
        while not self._stopped:
            context.profile.wait(context.settings.heartbeat_seconds)
            context.profile.clear()
            if self._stopped:
                return
            try:
                with context.sessions.begin() as session:
                    order = profiles.take_order(session, context.worker_id)
                if order is not None:
                    self._serve(order)
            except OperationalError as error:
                logger.warning("A profile failed: %s", error, extra={"action": "profile_failed"})

    def _serve(self, order: Order) -> None:
        profile = StepProfile(order.steps, order.seconds)
        self._loop.profile(profile)
        told = False
        while not profile.ended.wait(_LOOK_SECONDS):
            if profile.begun.is_set() and not told:
                with self._context.sessions.begin() as session:
                    profiles.note_begun(session, order.id)
                told = True
        trace, problem = _result_of(profile, self._stopped)
        with self._context.sessions.begin() as session:
            if trace is None:
                profiles.fail(session, order.id, problem)
            else:
                profiles.finish(session, order.id, trace, profile.steps_done)
        logger.info("Profiled %d steps.", profile.steps_done, extra={"action": "profiled"})


def _result_of(profile: StepProfile, worker_ends: bool) -> tuple[bytes | None, str]:
    """The trace, or why there is none."""
    if profile.refusal is not None:
        return None, profile.refusal
    recording = profile.recording
    if worker_ends and (recording is None or not profile.steps_done):
        return None, "The worker ended before it had a line. Ask again once another is ready."
    if recording is None or not profile.steps_done:
        return None, "The worker was idle: it had no line to answer. Profile it while a job runs."
    try:
        trace = recording.trace()
    except (OSError, RuntimeError) as error:
        logger.warning("A trace was lost: %s", error, extra={"action": "profile_failed"})
        return None, f"The trace could not be written: {error}"
    if len(trace) > MAX_TRACE_BYTES:
        return None, (
            f"The trace of {profile.steps_done} steps has {len(trace):,} bytes, above the limit of "
            f"{MAX_TRACE_BYTES:,}; ask for fewer steps."
        )
    return trace, ""
