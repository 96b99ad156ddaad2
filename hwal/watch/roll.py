"""Roll: what a rank has heard of the others."""

from __future__ import annotations

from hwal.watch.beat import Beat, Leave
from hwal.watch.judge import Seen

OVERDUE = 4.0  # looks without a word after which a rank is silent
LATE = 3.0  # seconds for a rank to come to its own end, once another has


class Roll:
    """Attributes:
    beats: rank -> its last, of those that are there. left: the last words of those that are not.
    """

    def __init__(self, tick: float) -> None:
        """`tick`: seconds between two words of a rank."""
        self.beats: dict[int, Beat] = {}
        self.left: dict[int, Leave] = {}
        self._tick = tick
        self._silent: dict[int, float] = {}
        self._left_at = 0.0  # when it heard of the first that left

    def heard(self, rank: int, beat: Beat | None = None) -> None:
        """A word of a rank; `beat`, if it was one."""
        self._silent[rank] = 0.0
        if beat is not None:
            self.beats[rank] = beat

    def gone(self, rank: int) -> Beat | None:
        """Nothing more will be heard of a rank. Its last beat, if it has not said that it leaves."""
        self._silent.pop(rank, None)
        return self.beats.pop(rank, None)

    def leaves(self, leave: Leave, now: float) -> None:
        """The last word of a rank, heard at `now`, in seconds of a clock that only goes on."""
        if not self.left:
            self._left_at = now
        self.left[leave.rank] = leave
        self.gone(leave.rank)

    def wait(self, seconds: float) -> None:
        """So much time has passed in which this rank listened."""
        for rank in self._silent:
            self._silent[rank] += seconds

    def waited_for(self, beat: Beat, at: float) -> Leave | None:
        """The last word of the rank that this one, whose beat of the time `at` this is, waits for in vain.

        It may have waited long for the very call with which the other came to its end: what counts is since that end.
        """
        if not self.left or beat.waits is None or min(beat.idle, at - self._left_at) <= LATE:
            return None
        return next(iter(self.left.values()))

    def world(self, beat: Beat) -> dict[int, Seen]:
        """All ranks that are there; `beat` is this one's own."""
        return {**{rank: Seen(seen, self._overdue(rank)) for rank, seen in self.beats.items()}, beat.rank: Seen(beat)}

    def _overdue(self, rank: int) -> float:
        silent = self._silent.get(rank, 0.0)
        return silent if silent > OVERDUE * self._tick else 0.0
