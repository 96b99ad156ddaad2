"""The signals that a launcher takes for its ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from hwal.launch.outcome import Outcome
from hwal.preempt import ECHO, numbers, passed_on


class Signals:
    """Takes SIGTERM, SIGINT, SIGUSR1 and SIGHUP, and passes the first on: the agent has a session of its own and sees none.

    Attributes:
        first: the number of the first, None before. count: how many came.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.count = 0
        self._last = 0.0
        self._before: dict[int, Any] = {}
        self._told: set[int] = set()

    @property
    def name(self) -> str | None:
        """Of the first."""
        return signal.Signals(self.first).name if self.first is not None else None

    def __enter__(self) -> Signals:
        for number in numbers():
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = number
        elif now - self._last < ECHO:
            return
        self._last = now
        self.count += 1

    def pass_on(self, ranks: Mapping[int, Outcome], number: int, state_dir: Path) -> None:
        """Sends it to every rank that runs and has had none yet; to one that is still starting when it has left its pid."""
        for rank in ranks.values():
            if rank.ended is None and rank.pid not in self._told and rank.lives:
                self._told.add(rank.pid)
                with suppress(OSError):  # a full disk: then a rank may take it for a second one
                    passed_on(state_dir, rank.pid).touch()
                with suppress(OSError):
                    os.kill(rank.pid, number if hasattr(signal, "SIGHUP") else signal.SIGTERM)
