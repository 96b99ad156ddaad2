"""Fits: which of the run's epochs each call of model.fit has.

The calls of a script are one run: the first epoch of each is the one behind those before. A call that a callback has ended has
fewer epochs than it asks for, and that is so after a resume too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hwal.progress import Progress


class Fits:
    """Calls are known by their order.

    Attributes:
        end: the epoch, of the run's, before which the calls so far end.
    """

    def __init__(self) -> None:
        self.end = 0
        self._firsts: list[int] = []  # of each call so far
        self._asked = 0  # epochs that the last of them asks for
        self._saved: Sequence[int] | None = ()
        self._ended: dict[str, Sequence[int]] = {}  # by the call's number: epochs that it had, and those it had asked for

    def resume(self, saved: Mapping[str, Any]) -> None:
        """`saved`: what to_save gave; nothing in earlier checkpoints, in whose runs fits followed each other from the start."""
        self._saved, self._ended = saved.get("firsts"), dict(saved.get("ended", {}))

    def begin(self, epochs: int, progress: Progress) -> tuple[int, int | None]:
        """A call begins that asks for so many epochs. Loops of the script's may have had some before, and left one open.

        Returns its first epoch, and how many it has where the saved run has ended it, else None.
        """
        number = len(self._firsts)
        if self._saved is None:
            first = self.end
        elif number < len(self._saved):
            first = max(self.end, self._saved[number])
        else:
            if progress.feed or progress.steps_in_feed:
                progress.leave_epoch()
            first = max(self.end, progress.epoch)
        self._firsts.append(first)
        self._asked = epochs
        had, asked = self._ended.get(str(number), (0, None))
        if asked != epochs:  # it is to go on, or anew
            self._ended.pop(str(number), None)
        self.end = first + (had if asked == epochs else epochs)
        return first, had if asked == epochs else None

    def stop(self, end: int) -> None:
        """The call in progress ends before that epoch of the run's."""
        self.end = end
        self._ended[str(len(self._firsts) - 1)] = [end - self._firsts[-1], self._asked]

    def to_save(self) -> dict[str, Any]:
        return {"firsts": list(self._firsts), "ended": {number: list(epochs) for number, epochs in self._ended.items()}}
