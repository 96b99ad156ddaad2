"""A run's folder belongs to one run at a time."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from hwal.errors import UsageError

LOCK = ".lock"


def hold(path: Path) -> None:
    """Keeps the folder to this process, and to the program that it becomes by exec, until it ends. Raises UsageError where
    another run has it. File systems without locks, and Windows, know of no other.
    """
    try:
        import fcntl
    except ImportError:
        return
    # A record lock: a loader's workers, which may outlive their run for seconds, do not inherit it. Closing any descriptor of
    # the file would give it up, so this one stays open.
    try:
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.set_inheritable(descriptor, True)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise UsageError(
                f"another run is at work in {path}",
                where="--out",
                why="two runs would write over each other's files",
                hint="choose another --out, or wait until that one has ended",
            ) from None


def drop_empty(path: Path) -> None:
    """A run that failed before it wrote anything leaves no folder behind."""
    with suppress(OSError):
        if [entry.name for entry in path.iterdir()] == [LOCK]:
            (path / LOCK).unlink()
        path.rmdir()
