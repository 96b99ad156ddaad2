"""Pulse: what a rank is doing, told by plain attribute stores, so that a step pays next to nothing. The watchdog reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SCRIPT = "script"  # the script's own code, outside of any feed
PREPARING = "preparing"
DATA = "data"  # the loader was asked for the next batch
TRAINING = "training"  # the script has a micro-batch
EVALUATING = "evaluating"
SAVING = "saving"

ANNOUNCED = frozenset({PREPARING, SAVING})
"""Phases that take as long as files and networks need."""


class Pulse:
    """Written by the main thread, read by the watchdog.

    Attributes:
        phase: one of the above. count: goes up with all that is progress, apart from steps.
        source: the loader that was last asked for a batch.
    """

    __slots__ = ("count", "phase", "source")

    def __init__(self) -> None:
        self.phase = SCRIPT
        self.count = 0
        self.source: Any = None

    def tick(self) -> None:
        """There was progress."""
        self.count += 1

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A phase that then ends where it began."""
        before, self.phase = self.phase, phase
        self.count += 1
        try:
            yield
        finally:
            self.phase = before
            self.count += 1
