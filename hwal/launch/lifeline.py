"""No orphans: a process that ends when the one that started it does."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
LAUNCHER, AGENT = "launcher.pid", "agent.pid"  # files of the state folder


def leave_pid(state_dir: Path, name: str) -> None:
    (state_dir / name).write_text(str(os.getpid()), encoding="utf-8")


def end_with_parent(state_dir: Path, parent: str) -> None:
    """Asks Linux for SIGKILL when the parent ends; elsewhere does nothing. `parent` is the name of the file with its pid.

    SIGKILL and not SIGTERM: a rank takes SIGTERM as the wish to save, which needs its peers, and they are losing their
    parent too; it would wait for them with nobody left to end it. Checkpoints are written so that SIGKILL loses none.
    """
    if sys.platform != "linux":
        return
    import ctypes  # 10 ms, and only ranks that have a launcher need it

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        expected = int((state_dir / parent).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        expected = None  # the state folder is gone, and its owner with it
    if os.getppid() != expected:  # it ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)
