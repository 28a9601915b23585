"""`python -m rorqual_scaler.child PARENT_PID MODULE`: become MODULE, and end with the parent.

The kernel sends SIGTERM when the scaler dies, even of SIGKILL, so that no instance outlives it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """Ask for SIGTERM at the parent's death; leave at once if it is dead already."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, "-m", sys.argv[2]])
