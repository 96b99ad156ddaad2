"""The stack of another process of this machine, also while it holds its interpreter's lock: at a signal faulthandler, which is
written in C, leaves it in a file without a name that peers reach under /proc. A loader's forked workers have the handler and
the file from the rank that they belong to. Linux only; elsewhere nothing is found."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

ANSWER = 0.3  # seconds that a process has to leave its stack


class Stacks:
    """Where this process leaves its stack when it is asked. `descriptor`: None where it cannot."""

    def __init__(self) -> None:
        self.file: IO[bytes] | None = None
        if sys.platform != "linux" or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
            return  # the script's own use of the signal goes first
        with suppress(OSError):
            self.file = tempfile.TemporaryFile(prefix="hwal-stack-")  # noqa: SIM115  # as long as the process
            faulthandler.register(signal.SIGUSR2, file=self.file, all_threads=False)

    @property
    def descriptor(self) -> int | None:
        return None if self.file is None else self.file.fileno()

    def close(self) -> None:
        if self.file is not None:
            faulthandler.unregister(signal.SIGUSR2)
            self.file.close()
            self.file = None


def stack_of(pid: int, descriptor: int | None) -> str | None:
    """What a process leaves when it is asked for its stack; None where it cannot be asked, or does not answer."""
    if descriptor is None or sys.platform != "linux" or not _takes(pid):
        return None
    path = f"/proc/{pid}/fd/{descriptor}"
    with suppress(OSError), open(path, "rb", buffering=0) as file:  # noqa: PTH123  # a link that leads nowhere by name
        begin = file.seek(0, os.SEEK_END)
        os.kill(pid, signal.SIGUSR2)
        deadline = time.monotonic() + ANSWER
        text, before = b"", None
        while time.monotonic() < deadline and (not text or text != before):
            time.sleep(0.02)
            before, text = text, os.pread(file.fileno(), 1 << 16, begin)
        return text.decode(errors="replace") or None
    return None


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal, or by a debugger."""
    return any(line.startswith("State:") and line.split()[1] in ("T", "t") for line in _lines(f"/proc/{pid}/status"))


def _takes(pid: int) -> bool:
    """Whether the signal has a handler there: it would end a process that has none."""
    for line in _lines(f"/proc/{pid}/status"):
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1)
    return False


def children_of(pid: int) -> list[int]:
    """The processes that one started and that have not ended."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for line in _lines(f"{task}/children") for child in line.split()]
    return found


def kill(pid: int) -> None:
    """Ends a process at once, and first those that it started, which nobody else would end."""
    if sys.platform == "win32":
        return
    for process in (*children_of(pid), pid):
        if process != os.getpid():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)


def how_it_ended(pid: int) -> str:
    """Of a process that is gone: in words, as well as it can be known; its parent may have the rest."""
    for line in _lines(f"/proc/{pid}/stat"):
        state, *fields = line.rpartition(")")[2].split()
        if state == "Z" and fields:  # it waits for its parent to ask: the last field is its status
            status = int(fields[-1])
            if status & 0x7F:
                with suppress(ValueError):
                    return f"was killed by {signal.Signals(status & 0x7F).name}"
            elif status:
                return f"ended with exit code {status >> 8}, and no word"
            else:
                return f"ended with exit code {status >> 8} before its script was done"
    return "was killed, crashed or called os._exit()"


def _lines(path: str) -> Iterator[str]:
    with suppress(OSError):
        yield from Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
