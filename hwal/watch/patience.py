"""How long a rank may go without progress, and how long it has. Time in which the watchdog did not run does not count."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Any

from hwal.watch.pulse import ANNOUNCED, SAVING, SCRIPT
from hwal.watch.spot import Spot

SHORTEST = 60.0  # seconds
TIMES = 20  # times the median step
HURRY = 30.0  # seconds once the run was asked to end: Slurm and Kubernetes kill it as long after they have asked
HURRIED = 3  # times the median step, then
MARGIN = 5.0  # seconds that a rank may be silent beyond its limit
LONG = 1800.0  # seconds: files, compilers, and all before the first step
STEPS = 25  # of which the median is taken
JUMP = 3.0  # looks: more between two of them, and the process was stopped or asleep


class Patience:
    """Attributes:
    tick: seconds between two looks. idle: seconds without progress.
    """

    def __init__(self, asked: float | str | None, now: float) -> None:
        """`asked`: --hang-timeout in seconds, "off", or None for max(60 s, 20 × the median step)."""
        self._asked = asked
        self.tick = min(1.0, asked / 8) if isinstance(asked, float) else 1.0
        self.idle = 0.0
        self._last = now
        self._mark: Any = None
        self._step: int | None = None
        self._since_step = 0.0
        self._seconds: deque[float] = deque(maxlen=STEPS)

    def look(self, now: float, step: int, mark: Any) -> None:
        """`mark` is other than before when there was progress."""
        passed = min(now - self._last, JUMP * self.tick)
        self._last = now
        self.idle = 0.0 if mark != self._mark else self.idle + passed
        self._mark = mark
        self._since_step += passed
        if self._step is None:
            self._step = step
        elif step > self._step:
            self._seconds.append(self._since_step / (step - self._step))
            self._step, self._since_step = step, 0.0

    @property
    def firm(self) -> bool:
        """Whether the limit was asked for. What it is by default is for ranks that others wait for: a script that trains alone,
        or does the same on all ranks, may have its reasons."""
        return isinstance(self._asked, float)

    def limit(self, phase: str, spot: Spot, hurried: bool = False) -> float | None:
        """Seconds that a rank may be idle there; None: for ever. `hurried`: it was asked to end, and to save before; what may
        take for ever else may not then, and while it prepares there is nothing to save."""
        if spot.debugging or (self._asked == "off" and not hurried):
            return None
        if phase == SCRIPT and spot.waits is None and not hurried:
            return None  # it may do what it likes, as long as nobody waits
        asked = self._asked if isinstance(self._asked, float) else None
        if spot.compiling or phase == SAVING or (phase in ANNOUNCED and not hurried):
            return max(LONG, asked or 0.0)
        step = median(self._seconds) if self._seconds else None
        limit = asked or (LONG if step is None else max(SHORTEST, TIMES * step))
        return min(limit, max(HURRY, HURRIED * (step or 0.0))) if hurried else limit

    def silence(self, limit: float | None, hurried: bool = False) -> float | None:
        """Seconds without a look after which the rank hangs in a call that lets no other Python run. Half an hour is too long
        for such a call also where there is no limit, or none that was asked for."""
        if self._asked == "off" and not hurried:
            return None
        seconds = LONG if limit is None else limit
        return (seconds if self.firm or hurried else max(seconds, LONG)) + MARGIN
