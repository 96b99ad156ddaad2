"""Fits: which of the run's epochs each call of model.fit has.

The calls of a script are one run: the first epoch of each is the one behind those before. A call that a callback has ended has
fewer epochs than it asks for, and that is so after a resume too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Fits:
    """Calls are known by their order.

    Attributes:
        end: the epoch, of the run's, before which the calls so far end.
    """

    def __init__(self) -> None:
        self.end = 0
        self._calls = 0
        self._first = self._asked = 0  # of the call in progress
        self._ended: dict[str, Sequence[int]] = {}  # by the call's number: epochs that it had, and those it had asked for

    def resume(self, saved: Mapping[str, Sequence[int]]) -> None:
        """`saved`: what to_save gave."""
        self._ended = dict(saved)

    def begin(self, epochs: int) -> int | None:
        """A call begins that asks for so many epochs; returns how many it has where the saved run has ended it, else None."""
        number, self._calls = str(self._calls), self._calls + 1
        self._first, self._asked = self.end, epochs
        had, asked = self._ended.get(number, (0, None))
        if asked != epochs:  # it is to go on, or anew
            self._ended.pop(number, None)
        self.end += had if asked == epochs else epochs
        return had if asked == epochs else None

    def stop(self, end: int) -> None:
        """The call in progress ends before that epoch of the run's."""
        self.end = end
        self._ended[str(self._calls - 1)] = [end - self._first, self._asked]

    def to_save(self) -> dict[str, Any]:
        return {number: list(epochs) for number, epochs in self._ended.items()}
