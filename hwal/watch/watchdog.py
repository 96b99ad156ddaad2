"""Watchdog: a thread on every rank that looks once a second whether there is progress, and ends the process when the run is
stuck or another rank is gone. Rank 0's hears of all others, and decides for all: every rank ends with the same words.

A rank that holds its interpreter's lock cannot run this thread. It is silent then; its peers ask its process for its stack.
Last of all a timer of faulthandler's, in C, which this thread puts off at every look, ends the process with its stack.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from hwal.aside import place
from hwal.errors import EXIT_OK, EXIT_PREEMPTED, HwalError, LostRankError, RecordError
from hwal.watch import judge, stacks
from hwal.watch.beat import Beat, Doom, Leave
from hwal.watch.judge import Seen
from hwal.watch.link import Hub, Spoke
from hwal.watch.patience import LONG, Patience
from hwal.watch.pulse import ANNOUNCED, DATA, SCRIPT, Pulse
from hwal.watch.spot import Library, Signs

GRACE = 1.0  # seconds for a rank to run into a lost connection by itself, or to wait for one that ended in good order
LATE = 3.0  # seconds for a rank to end by an error of its own, once another has
OVERDUE = 4.0  # looks without a word after which a rank is silent
MARGIN = 5.0  # seconds that the timer in C lets pass beyond the limit; where peers may say more, three times as many
BUSY = 0.05  # of a second's processor time: the main thread of a rank that waits for others takes less


@dataclass(frozen=True)
class Place:
    """Which rank this is, and of how many. `hint`: what helps when the run was ended, None where nothing does."""

    rank: int
    size: int
    hint: Callable[[], str | None]


class Watchdog:
    """`hurried` says whether the run was asked to end. `end` and `tell` are called on the watchdog's thread: one must end the
    process, the other says a line."""

    def __init__(
        self,
        place: Place,
        pulse: Pulse,
        steps: Callable[[], int],
        asked: float | str | None,
        signs: Signs,
        end: Callable[[Doom], None],
        hurried: Callable[[], bool] = bool,  # never
        tell: Callable[[str], None] = print,
    ) -> None:
        self._place = place
        self._pulse = pulse
        self._steps = steps
        self._asked = asked
        self._signs = signs
        self._hurried = hurried
        self._end = end
        self._tell = tell
        self._slow = False  # told that there was no progress
        self._link: Hub | Spoke | None = None
        self._beats: dict[int, Beat] = {}
        self._silent: dict[int, float] = {}
        self._left: dict[int, Leave] = {}
        self._stopped = threading.Event()
        self._known = threading.Event()  # that a rank is gone, or why the run cannot go on
        self._doom: Doom | None = None
        self._doom_at = 0.0

    # the main thread's side

    def start(self, link: Hub | Spoke | None) -> None:
        """Called by the main thread, which it watches."""
        self._link = link
        self._main = threading.current_thread().ident or 0
        self._stacks = stacks.Stacks()
        self._library = Library()
        self._patience = Patience(self._asked, time.monotonic())
        self._cpu = self._clock()
        self._last = time.monotonic()
        self._suspended = False
        tstp = getattr(signal, "SIGTSTP", None)  # Windows has none
        if tstp is not None and self._place.size == 1 and threading.current_thread() is threading.main_thread():
            signal.signal(tstp, self._on_suspend)
        threading.Thread(target=self._watch, name="hwal-watchdog", daemon=True).start()

    def leave(self, error: BaseException | None) -> None:
        """The last word: this rank's script is done, or failed. Nobody watches it from here on."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        faulthandler.cancel_dump_traceback_later()
        told = {"left": Leave(self._place.rank, self._steps(), _failed(error)).to_dict()}
        if isinstance(self._link, Hub):
            self._link.tell(told)
        elif self._link is not None:
            self._link.line.send(told)

    def explain(self) -> LostRankError | None:
        """After an error that says that a connection closed: which rank is gone, if one is."""
        if self._place.size == 1 or not self._known.wait(2 * GRACE):
            return None
        if self._doom is None:  # a rank has left, but maybe another is to blame
            time.sleep(GRACE / 2)
        doom = self._doom or judge.left(next(iter(self._left.values())), self._place.hint())
        self._doom_at = time.monotonic() + GRACE + MARGIN  # the error ends the script; that may take a moment
        return LostRankError(doom.what, why=doom.why, hint=doom.hint)

    # the watchdog's thread

    def _watch(self) -> None:
        link = self._link
        try:
            while not self._stopped.is_set():
                beat = self._look()
                self._hear(beat)
                if not self._stopped.is_set():
                    self._decide(beat)
        finally:
            faulthandler.cancel_dump_traceback_later()
            self._stacks.close()
            if link is not None:
                link.close()

    def _look(self) -> Beat:
        """What the main thread does right now."""
        pulse, patience = self._pulse, self._patience
        spot = self._library.spot(sys._current_frames().get(self._main), self._signs)
        if self._place.size == 1:
            spot = replace(spot, waits=None)
        phase, step, now = pulse.phase, self._steps(), time.monotonic()
        hurried = self._hurried()  # the time that it has then begins then
        mark: Any = (phase, step, pulse.count, spot.debugging, hurried)
        if phase == SCRIPT:  # it tells no progress; a rank that waits for others stands still, and computes nothing
            mark = (*mark, spot.waits, spot.line, self._worked(now - self._last))
        patience.look(now, step, mark)
        limit = patience.limit(phase, spot, hurried)
        firm = patience.firm or hurried
        self._put_off(limit if firm or limit is None else max(limit, LONG))
        return Beat(
            rank=self._place.rank,
            pid=os.getpid(),
            place=place(),
            stacks=self._stacks.descriptor,
            phase=phase,
            step=step,
            line=spot.line,
            waits=spot.waits,
            idle=patience.idle,
            limit=limit,
            firm=firm,
            announced=phase in ANNOUNCED or spot.compiling or spot.debugging,
            source=self._source() if phase == DATA and limit is not None and patience.idle > limit / 2 else None,
        )

    def _worked(self, passed: float) -> float:
        """Processor time of the main thread, as long as it takes any."""
        now = self._clock()
        if now - self._cpu > BUSY * passed:
            self._cpu = now
        return self._cpu

    def _clock(self) -> float:
        if not hasattr(time, "pthread_getcpuclockid"):
            return 0.0
        return time.clock_gettime(time.pthread_getcpuclockid(self._main))

    def _put_off(self, limit: float | None) -> None:
        """Where there is no limit, a call that lets no other Python run for half an hour still has hung."""
        stream = sys.__stderr__
        if self._asked == "off" or self._suspended or self._stopped.is_set() or stream is None:
            return
        margin = MARGIN if self._place.size == 1 else 3 * MARGIN
        with suppress(ValueError, OSError):  # no file is behind it
            faulthandler.dump_traceback_later((limit or LONG) + margin, exit=True, file=stream.fileno())

    def _on_suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the timer in C would go on, and fire when the process does."""
        self._suspended = True
        faulthandler.cancel_dump_traceback_later()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # here it stands until it is continued
        signal.signal(number, self._on_suspend)
        self._suspended = False

    def _source(self) -> str:
        """What gives no data: the data set's class, and what its loader's workers are doing."""
        from multiprocessing import active_children

        loader = self._pulse.source
        name = type(getattr(loader, "dataset", loader)).__name__
        told = []
        for child in active_children() if getattr(loader, "num_workers", 0) else ():
            if child.pid is not None:
                line = self._library.dumped(stacks.stack_of(child.pid, self._stacks.descriptor) or "")
                told.append(f"process {child.pid}" + (f" at {line}" if line else ""))
        workers = f" (worker{'s' * (len(told) > 1)}: {'; '.join(told)})" if told else ""
        return f"{name} gave nothing{workers}"

    # what the ranks tell each other

    def _hear(self, beat: Beat) -> None:
        """Tells of itself and hears of the others, for the time of one look."""
        link, until = self._link, self._last + self._patience.tick
        if isinstance(link, Spoke):
            link.line.send({"beat": beat.to_dict()})
        while (left := self._pause(until)) > 0 and not self._stopped.is_set():
            if link is None or link is not self._link:
                self._stopped.wait(left)
            elif isinstance(link, Hub):
                for rank, message in link.wait(left):
                    self._take(rank, message)
                    if "beat" in message:
                        link.lines[rank].send({"beat": beat.to_dict()})
            else:
                for message in link.wait(left):
                    self._take(0, message)
        now = time.monotonic()
        passed, self._last = min(now - self._last, 3 * self._patience.tick), now
        for rank in self._silent:
            self._silent[rank] += passed

    def _pause(self, until: float) -> float:
        return (min(until, self._doom_at) if self._doom else until) - time.monotonic()

    def _take(self, rank: int, message: dict[str, Any]) -> None:
        """One message of another rank; {}: its line closed."""
        self._silent[rank] = 0.0
        with suppress(RecordError):
            if "beat" in message:
                self._beats[rank] = Beat.from_dict(message["beat"])
            elif "doom" in message:
                self._ends(Doom.from_dict(message["doom"]), float(message.get("grace", 0.0)))
            elif "left" in message:
                self._take_leave(Leave.from_dict(message["left"]))
            elif not message and rank not in self._left and (beat := self._beats.pop(rank, None)) is not None:
                how = stacks.how_it_ended(beat.pid) if beat.place == place() else "ended, or its machine is lost"
                self._ends(judge.gone(beat, self._steps(), how, self._place.hint()), GRACE)
        if not message or rank in self._left:
            self._silent.pop(rank, None)
            if rank == 0 and isinstance(self._link, Spoke):
                self._link = None  # from here on alone

    def _take_leave(self, leave: Leave) -> None:
        self._left[leave.rank] = leave
        self._beats.pop(leave.rank, None)
        self._known.set()
        if isinstance(self._link, Hub):
            self._link.tell({"left": leave.to_dict()})
        if leave.error is not None:
            self._ends(judge.left(leave, self._place.hint()), LATE)

    # what comes of it

    def _decide(self, beat: Beat) -> None:
        if self._doom is None:
            world = {rank: Seen(seen, self._overdue(rank)) for rank, seen in self._beats.items()}
            decides = not isinstance(self._link, Spoke) or bool(world and world[0].silent)
            world[beat.rank] = Seen(beat)
            ended = next(iter(self._left.values()), None)
            if ended is not None and beat.waits is not None and beat.idle > GRACE:
                self._ends(judge.left(ended, self._place.hint()), 0.0)
            elif decides and judge.stalled(world):
                self._ends(judge.stuck(self._asked_for_stacks(world), self._place.hint()), 0.0, world)
            elif beat.stalled and beat.waits is None and not self._slow:
                self._tell(judge.slow(beat.rank, world))
            self._slow = beat.stalled
        if self._doom is not None and time.monotonic() >= self._doom_at and not self._stopped.is_set():
            self._end(self._doom)

    def _overdue(self, rank: int) -> float:
        silent = self._silent.get(rank, 0.0)
        return silent if silent > OVERDUE * self._patience.tick else 0.0

    def _asked_for_stacks(self, world: dict[int, Seen]) -> dict[int, Seen]:
        asked = {}
        for rank, seen in world.items():
            here = seen.silent and seen.beat.place == place()
            text = stacks.stack_of(seen.beat.pid, seen.beat.stacks) if here else None
            asked[rank] = replace(seen, stack=self._library.dumped(text)) if text else seen
        return asked

    def _ends(self, doom: Doom, grace: float, world: dict[int, Seen] | None = None) -> None:
        """Every rank ends, after `grace` seconds; silent ones of this machine, which cannot by themselves, now."""
        if self._doom is not None:
            return
        self._doom, self._doom_at = doom, time.monotonic() + grace
        self._known.set()
        if isinstance(self._link, Hub):
            self._link.tell({"doom": doom.to_dict(), "grace": grace})
        for seen in (world or {}).values():
            if seen.silent and seen.beat.place == place():
                stacks.kill(seen.beat.pid)


def _failed(error: BaseException | None) -> str | None:
    """What a rank's peers are told of the error that ended it; None when it was no failure."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, EXIT_OK, EXIT_PREEMPTED)):
        return None
    text = error.what if isinstance(error, HwalError) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0].rstrip(": ") if text else type(error).__name__
