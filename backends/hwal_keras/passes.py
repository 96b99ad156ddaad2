"""Passes: how often each dataset of a script has been begun.

A dataset that is shuffled anew for each pass draws its order when a pass begins, from a generator of its own that nobody can
set. So a resumed run begins as many passes as its checkpoint has behind it, and then has the order of the run that was not
interrupted. Each of them fills the shuffle's buffer once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref


class Passes:
    """Datasets are known by the order in which rt.feed is first given them; it is their Feed that keeps them, not this."""

    def __init__(self) -> None:
        self._data: list[ref[Any]] = []
        self._begun: list[int] = []
        self._saved: Sequence[int] = ()
        self._open: set[int] = set()  # those of which one pass goes over all epochs

    def resume(self, saved: Sequence[int]) -> None:
        """`saved`: what to_save gave."""
        self._saved = saved

    def number(self, data: Any) -> int:
        """Which of the script's datasets it is."""
        for number, known in enumerate(self._data):
            if known() is data:
                return number
        self._data.append(ref(data))
        self._begun.append(0)
        return len(self._data) - 1

    def begin(self, number: int, endless: bool = False) -> None:
        """A pass of a dataset begins; before it those that a resumed run has behind it."""
        behind = self._saved[number] if number < len(self._saved) else 0
        for _ in range(self._begun[number], behind):
            self._order(number)
        self._begun[number] = max(self._begun[number], behind) + 1
        if endless:
            self._open.add(number)

    def skip(self, number: int) -> None:
        """A pass of a dataset of which nothing is left to do begins and ends."""
        self.begin(number)
        self._order(number)

    def _order(self, number: int) -> None:
        """Has a dataset draw the order of a pass."""
        data = self._data[number]()
        assert data is not None  # its Feed is being read
        next(iter(data), None)

    def to_save(self, unfinished: int | None) -> list[int]:
        """Of each dataset the passes that are behind a run which goes on from here; that of `unfinished` it begins again."""
        again = self._open | ({unfinished} - {None})
        return [begun - (number in again) for number, begun in enumerate(self._begun)]
