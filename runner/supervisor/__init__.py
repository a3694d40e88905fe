"""The process tree of ``tokenmill up``: started, watched, restarted and stopped in order."""

from runner.supervisor.errors import AlreadyRunning, SupervisorError
from runner.supervisor.spec import ProcessSpec, Role, UpOptions
from runner.supervisor.supervisor import Plan, Supervisor
from runner.supervisor.up_state import ProcessState, UpState, is_up, read_up_state

__all__ = [
    "AlreadyRunning",
    "Plan",
    "ProcessSpec",
    "ProcessState",
    "Role",
    "Supervisor",
    "SupervisorError",
    "UpOptions",
    "UpState",
    "is_up",
    "read_up_state",
]
