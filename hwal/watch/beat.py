"""Beat: what a rank tells rank 0 of itself, once a second."""

from __future__ import annotations

from hwal.record import Record, dataclass


@dataclass(frozen=True)
class Beat(Record):
    """Attributes:
    pid, place: its process, and where that number means it (hwal.aside.place). stacks: the file descriptor there that
        holds its stack once it is asked for (hwal.watch.stacks); None where that cannot be.
    phase, step: as in Pulse; the global steps done. line: where its main thread is.
    waits: the call in which it waits for other ranks. idle: seconds without progress. limit: seconds it may be; None:
        for ever. firm: that limit ends the run also where nobody waits for anybody, since it was asked for. announced: it is
        at what takes long by nature. source: which data set gave nothing to a rank that has long waited for data.
    asked: the name of the signal that asked it to end; None before.
    silence: seconds without a word after which it hangs in a call that lets no other Python run; None: it may.
    """

    rank: int
    pid: int
    place: str
    stacks: int | None
    phase: str
    step: int
    line: str
    waits: str | None = None
    idle: float = 0.0
    limit: float | None = None
    firm: bool = True
    announced: bool = False
    source: str | None = None
    asked: str | None = None
    silence: float | None = None

    @property
    def stalled(self) -> bool:
        return self.limit is not None and self.idle >= self.limit


@dataclass(frozen=True)
class Leave(Record):
    """A rank's last word. `error`: one line; None when its script came to an end, or it was asked to stop."""

    rank: int
    step: int
    error: str | None = None


@dataclass(frozen=True)
class Doom(Record):
    """Why the run cannot go on: `what` in one line, why, and what to do. `lost`: a rank is gone, the others were well.
    `asked`: the signal that asked it to end, where that is why it does not get longer."""

    what: str
    why: str | None = None
    hint: str | None = None
    lost: bool = False
    asked: str | None = None
