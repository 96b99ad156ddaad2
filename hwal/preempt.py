"""StopRequest: a signal that asks a run to save and end."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from time import monotonic
from types import FrameType
from typing import Any

ECHO = 0.5  # seconds in which a second signal is the same one: wrappers pass on a Ctrl-C that the terminal sent to all
NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")


class StopRequest:
    """Remembers the first SIGTERM, SIGINT or SIGUSR1; a second one ends the process at once, as if no handler were there.

    Installed by the main thread only; elsewhere (a notebook's worker thread) it stays silent.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[int, Any] = {}
        self._pid = 0
        self._at = 0.0

    def __bool__(self) -> bool:
        return self.name is not None

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._pid = os.getpid()
        for name in NAMES:
            number = getattr(signal, name, None)  # Windows has no SIGUSR1
            if number is not None:
                self._before[number] = signal.signal(number, self._on_signal)

    def uninstall(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        forked = os.getpid() != self._pid  # a child of the script's inherits the handler, and has nothing to save
        if self.name is None and not forked:
            self.name = signal.Signals(number).name
            self._at = monotonic()
            with suppress(OSError):  # not print: the signal may have come in the midst of one
                os.write(2, f"\nhwal: {self.name}: saving after this step; once more ends at once\n".encode())
            return
        if not forked and monotonic() - self._at < ECHO:
            return
        signal.signal(number, self._before.get(number) if forked else signal.SIG_DFL)
        os.kill(os.getpid(), number)
