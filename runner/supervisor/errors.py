"""What can go wrong with ``up`` and ``down``, as sentences that say what to do."""

from runner.domain.errors import RunnerError


class SupervisorError(RunnerError):
    """The process tree can't be started or reached."""

    code = "supervisor"


class AlreadyRunning(SupervisorError):
    """Another supervisor holds this data directory."""

    code = "already_running"
