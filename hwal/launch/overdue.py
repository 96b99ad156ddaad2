"""Ranks that do not end by themselves: what the launcher ends, and what it says of them.

A rank's watchdog (hwal.watch) judges its rank and its peers, also once the run was asked to end: it knows how long a step
takes, and whether a save makes progress. The launcher ends ranks where there is none at work: in a script that has not come
to hwal.start(), and in calls that let no other Python run.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hwal.launch.outcome import Outcome, leave_ended
from hwal.watch.beat import Beat, Doom
from hwal.watch.judge import RUSH, longer
from hwal.watch.patience import HURRY
from hwal.watch.spot import Library
from hwal.watch.stacks import is_stopped, stack_of

FAILED = 3.0  # seconds that ranks have to end by themselves once one has failed; torchrun alone gives them 30
GRACE = HURRY  # of ranks whose watchdogs are silent once they were asked to end: as long as a watchdog gives its own
BETWEEN = 1.0  # seconds between two looks at the most: more, and this process was stopped meanwhile

Beats = Mapping[int, tuple[Beat, int]]  # as hwal.launch.word.read_beats gives them


class Failed:
    """Ends the ranks that wait for one that has failed: they may hold torchrun's SIGTERM for the wish to save, in vain.

    A rank that has left its error and does not get to its end is ended too: until then torchrun sees no failure. Each is ended
    once, and it is left in the state folder that it was hwal who did: how such a process ended says nothing of its rank.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._ended: set[int] = set()
        self._seen: dict[int, tuple[float, set[int]]] = {}  # pid of a failed rank -> when this was seen, and which were there

    def look(self, ranks: Mapping[int, Outcome], now: float) -> None:
        """`now`: seconds of a clock that never jumps."""
        there = {rank.pid for rank in ranks.values()}
        for rank in ranks.values():
            if rank.error is not None or (rank.ended is None and not rank.lives):
                self._seen.setdefault(rank.pid, (now, there))
        when, peers = min(
            (seen for pid, seen in self._seen.items() if pid in there), key=lambda seen: seen[0], default=(now, there)
        )
        if now - when < FAILED:
            return
        for rank in ranks.values():
            done = rank.ended is not None and rank.error is None
            if not done and rank.pid in peers - self._ended and rank.lives:  # others are torchrun's restart
                self._ended.add(rank.pid)
                leave_ended(self._state_dir, rank.pid)
                with suppress(OSError):
                    os.kill(rank.pid, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)


class Overdue:
    """Hears whether any rank's watchdog is at work."""

    def __init__(self, now: float, environ: Mapping[str, str]) -> None:
        """`now`: seconds of a clock that never jumps. `environ`: what the ranks were started with."""
        self._last = now
        self._environ = environ
        self._silent = 0.0
        self._before: object = None

    def look(self, ranks: Mapping[int, Outcome], beats: Beats, asked: str | None, now: float) -> Doom | None:
        """Why the ranks are to be ended; None as long as they are not. `asked`: the signal that they were passed."""
        mark = (asked, {rank.pid: rank.ended for rank in ranks.values()}, {pid: when for pid, (_, when) in beats.items()})
        self._silent += min(now - self._last, BETWEEN)
        self._last = now
        running = {number: rank for number, rank in ranks.items() if rank.ended is None}
        if mark != self._before or any(is_stopped(rank.pid) for rank in running.values()):
            self._before, self._silent = mark, 0.0
        limit = GRACE if asked else _silence(running, beats)
        if limit is None or self._silent < limit:
            return None
        who = "; ".join(_where(number, rank, beats) for number, rank in running.items()) or "their scripts are done"
        if asked is None:
            return Doom(f"no rank has let its watchdog run for {limit:.0f} s: {who}", hint=longer(self._environ))
        return Doom(f"{asked}: the ranks did not end within {limit:.0f} s: {who}", why=RUSH, asked=asked)


def _silence(running: Mapping[int, Outcome], beats: Beats) -> float | None:
    """Seconds of silence that are a hang, as the most patient rank has it; None where one has said nothing."""
    said = [beats[rank.pid][0].silence if rank.pid in beats else None for rank in running.values()]
    known = [seconds for seconds in said if seconds is not None]
    return max(known) if known and len(known) == len(said) else None


def _where(number: int, rank: Outcome, beats: Beats) -> str:
    """Of a rank that runs: where it is."""
    if rank.pid not in beats:
        return f"rank {number} (process {rank.pid}) is not within hwal.start()"
    beat, _ = beats[rank.pid]
    text = stack_of(rank.pid, beat.stacks)
    line = Library().dumped(text) if text else None
    return (
        f"rank {number} is at {line}, in a call that lets no other Python run"
        if line
        else f"rank {number} was last seen at {beat.line}"
    )
