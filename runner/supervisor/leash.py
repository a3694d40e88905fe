"""Run as a script between fork and exec: ties the command that follows to its parent's life.

Usage: ``leash.py PARENT_PID COMMAND...``. Uses the standard library only, so that it is quick. The
kernel sends TERM when the parent dies, whatever it died of; elsewhere than on Linux the next ``up``
cleans up instead.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # The parent may have died before the kernel was asked.
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
