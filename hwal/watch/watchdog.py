"""Watchdog: a thread on every rank that looks once a second whether there is progress, and ends the process when the run is
stuck or another rank is gone. Rank 0's hears of all others, and decides for all: every rank ends with the same words.

A rank that holds its interpreter's lock cannot run this thread. It is silent then; its peers ask its process for its stack.
One that has no peers has its stack printed by a timer in C, which this thread puts off at every look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hwal.aside import place
from hwal.errors import EXIT_OK, EXIT_PREEMPTED, HwalError, LostRankError, RecordError
from hwal.watch import judge, stacks
from hwal.watch.beat import Beat, Doom, Leave
from hwal.watch.judge import Seen
from hwal.watch.link import CONNECT, Hub, Spoke
from hwal.watch.look import Look
from hwal.watch.patience import JUMP, Patience
from hwal.watch.pulse import Pulse
from hwal.watch.roll import LATE, Roll
from hwal.watch.spot import Signs
from hwal.watch.watched import Watched

NOTICE = 1.0  # seconds for a rank to run into a lost connection by itself
JOIN = 2 * CONNECT  # seconds for a rank to be heard of
LAST = 5.0  # seconds for a script to end by an error that tells of a lost rank


@dataclass(frozen=True)
class Member:
    """Which rank this is, and of how many."""

    rank: int
    size: int


class Owner(Protocol):
    """Whose run it is. All is called on the watchdog's thread."""

    def asked(self) -> str | None:
        """The signal that asked the run to end; None before."""

    def show(self, beat: Beat) -> None:
        """Shows a launcher that the watchdog is at work, and where its rank is."""

    def rest(self) -> None:
        """The watchdog's work is over, and nothing more is shown."""

    def tell(self, line: str) -> None:
        """Says a line to the person at the terminal."""

    def end(self, doom: Doom) -> None:
        """Ends the process."""


class Watchdog:
    """`asked`: --hang-timeout, as Patience takes it. `steps`: how many are done."""

    def __init__(
        self, member: Member, pulse: Pulse, steps: Callable[[], int], asked: float | str | None, signs: Signs, owner: Owner
    ) -> None:
        self._member = member
        self._pulse = pulse
        self._steps = steps
        self._asked = asked
        self._signs = signs
        self._owner = owner
        self._slow = False  # told that there was no progress
        self._apart = False  # told that there are ranks which nothing is heard of
        self._link: Hub | Spoke | None = None
        self._stopped = threading.Event()
        self._known = threading.Event()  # that a rank is gone, or why the run cannot go on
        self._doom: Doom | None = None
        self._doom_at = 0.0

    # the main thread's side

    def start(self, link: Hub | Spoke | None) -> None:
        """Called by the main thread, which it watches."""
        self._link = link
        self._last = self._began = now = time.monotonic()
        self._watched = Watched(self._signs)
        self._patience = Patience(self._asked, now)
        self._roll = Roll(self._patience.tick)
        alone = self._member.size == 1
        self._look = Look(self._member.rank, alone, self._watched, self._pulse, self._steps, self._patience, now)
        threading.Thread(target=self._watch, name="hwal-watchdog", daemon=True).start()

    def leave(self, error: BaseException | None) -> None:
        """The last word: this rank's script is done, or failed. Nobody watches it from here on."""
        if self._stopped.is_set():
            return
        self._send({"left": Leave(self._member.rank, self._steps(), _failed(error)).to_dict()})
        self._stopped.set()  # not before: its thread then closes the socket

    def explain(self) -> LostRankError | None:
        """After an error that says that a connection closed: which rank is gone, if one is."""
        if self._member.size == 1 or not self._known.wait(2 * NOTICE):
            return None
        if self._doom is None:  # a rank has left, but maybe another is to blame
            time.sleep(NOTICE / 2)
        doom = self._doom or judge.left(next(iter(self._roll.left.values())))
        self._doom_at = time.monotonic() + NOTICE + LAST  # the error ends the script; that may take a moment
        return LostRankError(doom.what, why=doom.why, hint=doom.hint)

    # the watchdog's thread

    def _watch(self) -> None:
        link = self._link
        try:
            while not self._stopped.is_set():
                self._look_once()
        except Exception as error:  # whatever it is, the run goes on; a line that closes without a word is a rank that is lost
            why = f"{type(error).__name__}: {error}"
            self._send({"apart": why}, last=True)
            self._owner.tell(f"note: rank {self._member.rank} stands apart from the watch over hangs from here on: {why}")
        finally:
            self._watched.close()
            self._owner.rest()
            if link is not None:
                link.close()

    def _look_once(self) -> None:
        beat = self._look.take(time.monotonic(), self._owner.asked())
        self._owner.show(beat)
        silence = beat.silence if self._link is None else None  # else peers ask for its stack
        if silence is not None:
            self._watched.show_later(silence)
        passed = self._hear(beat)
        if silence is not None and passed > silence:
            why = "it was stopped, or in a call that lets no other Python run"
            self._owner.tell(f"this process stood still for {passed:.0f} s: {why}. It goes on")
        if not self._stopped.is_set():
            self._decide(beat)

    # what the ranks tell each other

    def _send(self, message: Mapping[str, Any], last: bool = False) -> None:
        """To rank 0, and from there to all. `last`: nothing follows, so that it must not be dropped."""
        link = self._link
        if isinstance(link, Hub):
            link.tell(message, last)
        elif link is not None:
            (link.line.send_last if last else link.line.send)(message)

    def _hear(self, beat: Beat) -> float:
        """Tells of itself and hears of the others, for the time of one look; returns how long that took."""
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
        passed, self._last = now - self._last, now
        self._roll.wait(min(passed, JUMP * self._patience.tick))
        return passed

    def _pause(self, until: float) -> float:
        return (min(until, self._doom_at) if self._doom else until) - time.monotonic()

    def _take(self, rank: int, message: dict[str, Any]) -> None:
        """One message of another rank; {}: its line closed."""
        roll = self._roll
        roll.heard(rank)
        with suppress(RecordError):
            if "beat" in message:
                roll.heard(rank, Beat.from_dict(message["beat"]))
            elif "doom" in message:
                self._ends(Doom.from_dict(message["doom"]), float(message.get("grace", 0.0)))
            elif "left" in message:
                self._take_leave(Leave.from_dict(message["left"]))
            elif "apart" in message:
                self._take_apart(rank, str(message["apart"]))
        if not message and (beat := roll.gone(rank)) is not None:
            how = stacks.how_it_ended(beat.pid) if beat.place == place() else "ended, or its machine is lost"
            self._ends(judge.gone(beat, self._steps(), how), NOTICE)
        if not message or rank in roll.left:
            self._lose(rank)

    def _lose(self, rank: int) -> None:
        """Nothing more will be heard of a rank."""
        self._roll.gone(rank)
        if rank == 0 and isinstance(self._link, Spoke):
            self._link = None  # from here on alone

    def _take_apart(self, rank: int, why: str) -> None:
        """A rank's watchdog has ended, not the rank: it may be at anything."""
        self._lose(rank)
        if isinstance(self._link, Hub):
            self._apart = True
            self._owner.tell(f"note: rank {rank} stands apart from the watch over hangs from here on: {why}")

    def _take_leave(self, leave: Leave) -> None:
        self._roll.leaves(leave, time.monotonic())
        self._known.set()
        if isinstance(self._link, Hub):
            self._link.tell({"left": leave.to_dict()})
        if leave.error is not None:
            self._ends(judge.left(leave), LATE)

    # what comes of it

    def _decide(self, beat: Beat) -> None:
        if self._doom is None:
            world = self._roll.world(beat)
            late = any(seen.stalled and seen.waits for seen in world.values())
            world = {rank: self._by_now(seen, late) for rank, seen in world.items()}
            spoke = isinstance(self._link, Spoke)
            decides = not spoke or (0 in world and bool(world[0].silent))
            whole = spoke or not self._missing(world)
            if not whole and not self._apart and self._last - self._began > JOIN:
                self._tell_apart(self._missing(world))
            ended = self._roll.waited_for(beat, self._last)
            if ended is not None:
                self._ends(judge.left(ended), 0.0)
            elif decides and judge.stalled(world, whole):
                self._ends(judge.stuck(self._asked_for_stacks(world)), 0.0, world)
            elif beat.stalled and beat.waits is None and not self._slow:
                self._owner.tell(judge.slow(beat.rank, world))
            self._slow = beat.stalled
        if self._doom is not None and time.monotonic() >= self._doom_at and not self._stopped.is_set():
            self._owner.end(self._doom)

    def _missing(self, world: Mapping[int, Seen]) -> list[int]:
        """The ranks that this one hears nothing of, although they have not left."""
        return [rank for rank in range(self._member.size) if rank not in world and rank not in self._roll.left]

    def _tell_apart(self, missing: list[int]) -> None:
        """Once, by rank 0; where it is that one which nothing is heard of, a rank has said so of itself (its Owner)."""
        self._apart = True
        if isinstance(self._link, Hub):
            self._owner.tell(judge.apart(missing, self._link.port))

    def _by_now(self, seen: Seen, late: bool) -> Seen:
        """A silent rank of this machine as it is. One that a debugger, or whoever sent it SIGSTOP, holds has not hung: it
        goes on when it is let go. One that was at what takes long may have come further; that counts once others are `late`.
        """
        beat = seen.beat
        if not seen.silent or beat.place != place():
            return seen
        if stacks.is_stopped(beat.pid):
            return Seen(replace(beat, limit=None, idle=0.0, waits=None, announced=True))
        if late and beat.announced and not self._watched.is_ours(beat.pid, beat.stacks):
            return replace(seen, beat=replace(beat, limit=None, announced=False))
        return seen

    def _asked_for_stacks(self, world: dict[int, Seen]) -> dict[int, Seen]:
        asked = {}
        for rank, seen in world.items():
            here = seen.silent and seen.beat.place == place()
            asked[rank] = replace(seen, stack=self._watched.line_of(seen.beat.pid, seen.beat.stacks)) if here else seen
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
