"""Look: what a rank does right now, and whether that is progress. Time is given, not taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from hwal.aside import place
from hwal.watch.beat import Beat
from hwal.watch.patience import Patience
from hwal.watch.pulse import ANNOUNCED, DATA, PREPARING, SCRIPT, Pulse
from hwal.watch.spot import Spot

BUSY = 0.05  # of a second's processor time: the main thread of a rank that waits for others takes less
MOVES = 1 << 16  # bytes a second, read and written, that are progress: the watchdog itself, and metrics, take a few thousand


class Thread(Protocol):
    """What is asked of hwal.watch.watched.Watched."""

    @property
    def descriptor(self) -> int | None: ...
    def spot(self) -> Spot: ...
    def seconds(self) -> float: ...
    def bytes(self) -> int: ...
    def source(self, loader: Any) -> str: ...


class Look:
    """Attributes:
    patience: how long the rank may go without progress, and has.
    """

    def __init__(
        self, rank: int, alone: bool, thread: Thread, pulse: Pulse, steps: Callable[[], int], patience: Patience, now: float
    ) -> None:
        """`alone`: no other rank is there to wait for. `steps`: how many are done."""
        self.patience = patience
        self._rank = rank
        self._alone = alone
        self._thread = thread
        self._pulse = pulse
        self._steps = steps
        self._last = now
        self._cpu = thread.seconds()
        self._bytes = self._moves = 0

    def take(self, now: float, asked: str | None) -> Beat:
        """`asked`: the signal that asked the run to end; the time that it has then begins when that is first said."""
        pulse, patience = self._pulse, self.patience
        spot = self._thread.spot()
        if self._alone:
            spot = replace(spot, waits=None)
        phase, step = pulse.phase, self._steps()
        mark: Any = (phase, step, pulse.count, spot.debugging, asked)
        if phase == SCRIPT:  # it tells no progress; a rank that waits for others stands still, and computes nothing
            mark = (*mark, spot.waits, spot.line, self._worked(now - self._last))
        elif phase in ANNOUNCED and not (phase == PREPARING and asked):
            mark = (*mark, self._moved(now - self._last))
        self._last = now
        patience.look(now, step, mark)
        limit = patience.limit(phase, spot, asked is not None)
        return Beat(
            rank=self._rank,
            pid=os.getpid(),
            place=place(),
            stacks=self._thread.descriptor,
            phase=phase,
            step=step,
            line=spot.line,
            waits=spot.waits,
            idle=patience.idle,
            limit=limit,
            firm=patience.firm or asked is not None,
            announced=phase in ANNOUNCED or spot.compiling or spot.debugging,
            source=self._source() if phase == DATA and limit is not None and patience.idle > limit / 2 else None,
            asked=asked,
            silence=patience.silence(limit, asked is not None),
        )

    def _worked(self, passed: float) -> float:
        """Processor time of the thread, as long as it takes any."""
        now = self._thread.seconds()
        if now - self._cpu > BUSY * passed:
            self._cpu = now
        return self._cpu

    def _moved(self, passed: float) -> int:
        """Another number each time that files were read or written."""
        before, self._bytes = self._bytes, self._thread.bytes()
        self._moves += self._bytes - before > MOVES * passed
        return self._moves

    def _source(self) -> str:
        return self._thread.source(self._pulse.source)
