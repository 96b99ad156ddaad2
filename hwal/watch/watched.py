"""Watched: the main thread of this process, and what the system knows of it and of its peers on this machine."""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hwal.watch.spot import Library, Signs, Spot
from hwal.watch.stacks import Stacks, stack_of


class Watched:
    """Made by the thread that is watched."""

    def __init__(self, signs: Signs) -> None:
        self._thread = threading.current_thread().ident or 0
        self._signs = signs
        self._library = Library()
        self._stacks = Stacks()
        # Asked for once, while the thread lives: the C library may crash when it is asked for that of one that is gone.
        has_clock = hasattr(time, "pthread_getcpuclockid")
        self._clock: int | None = time.pthread_getcpuclockid(self._thread) if has_clock else None

    @property
    def descriptor(self) -> int | None:
        """See Beat.stacks."""
        return self._stacks.descriptor

    def spot(self) -> Spot:
        """Where the thread is."""
        return self._library.spot(sys._current_frames().get(self._thread), self._signs)

    def seconds(self) -> float:
        """Processor time that the thread has taken; 0 where the system does not tell, or the thread is gone."""
        if self._clock is None:
            return 0.0
        try:
            return time.clock_gettime(self._clock)
        except OSError:
            return 0.0

    def bytes(self) -> int:
        """How many this process has read and written, wherever; 0 where the system does not tell."""
        with suppress(OSError, ValueError, IndexError):
            counts = Path("/proc/self/io").read_text(encoding="ascii").split()
            return int(counts[1]) + int(counts[3])
        return 0

    def line_of(self, pid: int, descriptor: int | None) -> str | None:
        """The line at which another process is; None where it does not say."""
        text = stack_of(pid, descriptor)
        return self._library.dumped(text) if text else None

    def is_ours(self, pid: int, descriptor: int | None) -> bool:
        """Whether hwal's code is at work in another process, for the script there; also where that does not say."""
        text = stack_of(pid, descriptor)
        return text is None or self._library.is_ours(text)

    def source(self, loader: Any) -> str:
        """What gives no data: the data set's class, and what its loader's workers are doing."""
        from multiprocessing import active_children

        name = type(loader).__name__
        with suppress(Exception):  # it may be a property of the script's, which raises what it likes
            name = type(loader.dataset).__name__
        told = []
        for child in active_children() if getattr(loader, "num_workers", 0) else ():
            if child.pid is not None:
                line = self.line_of(child.pid, self.descriptor)
                told.append(f"process {child.pid}" + (f" at {line}" if line else ""))
        workers = f" (worker{'s' * (len(told) > 1)}: {'; '.join(told)})" if told else ""
        return f"{name} gave nothing{workers}"

    def show_later(self, seconds: float) -> None:
        """Has its stack printed, in C, unless this is called again before. It does not end the process: a timer does not know
        a call that lets no other Python run from a process that was stopped meanwhile, and is well."""
        stream = sys.__stderr__
        with suppress(ValueError, OSError):  # no file is behind it
            if stream is not None:
                faulthandler.dump_traceback_later(seconds, file=stream.fileno())

    def close(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._stacks.close()
