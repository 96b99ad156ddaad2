"""What is wrong with a world, in words: from what every rank said of itself last, and for how long it has said nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hwal.env import spelled
from hwal.watch.beat import Beat, Doom, Leave
from hwal.watch.patience import LONG
from hwal.watch.pulse import DATA, EVALUATING, PREPARING, SAVING, TRAINING

RUSH = "the run was asked to end, and waits no longer"
SHOWN = 8  # ranks that are named
BUSY = {PREPARING: " in rt.prepare", SAVING: " in rt.save"}


@dataclass(frozen=True)
class Seen:
    """Attributes:
    beat: a rank's last. silent: seconds that it is overdue, 0 as long as it is not. stack: its line, as its process
        showed when it was asked although it was silent.
    """

    beat: Beat
    silent: float = 0.0
    stack: str | None = None

    @property
    def idle(self) -> float:
        return self.beat.idle + self.silent

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks, and so is not the one to blame."""
        return self.beat.waits is not None and not self.silent

    @property
    def stalled(self) -> bool:
        return self.beat.limit is not None and self.idle >= self.beat.limit


def stalled(world: Mapping[int, Seen], whole: bool = True) -> bool:
    """Whether the run is stuck. Ranks that only wait are not, while one of the others is at what takes long by nature, as one
    that is not heard of may be (the world is not `whole` then); nor is, by the limits that hold by default, a run in which
    nobody has waited as long for it, for half an hour."""
    waited = max((seen.idle for seen in world.values() if seen.waits), default=-1.0)
    for seen in world.values():
        if seen.stalled and not seen.waits and (seen.beat.firm or seen.idle >= LONG or waited >= (seen.beat.limit or 0.0)):
            return True
    held = any(seen.beat.announced and not seen.waits and not seen.stalled for seen in world.values())
    return whole and not held and any(seen.stalled and seen.waits for seen in world.values())


def to_blame(world: Mapping[int, Seen]) -> list[int]:
    """The ranks that the others wait for: those that do not wait themselves; all, where each waits for another."""
    return sorted(rank for rank, seen in world.items() if not seen.waits) or sorted(world)


def stuck(world: Mapping[int, Seen]) -> Doom:
    """The words about a world that is stuck."""
    doom = _stuck_world(world)
    asked = next((seen.beat.asked for seen in world.values() if seen.beat.asked), None)
    if asked is None:
        return replace(doom, hint=longer())
    return replace(doom, what=f"{asked}: {doom.what}", why=f"{doom.why}; {RUSH}" if doom.why else RUSH, asked=asked)


def longer(environ: Mapping[str, str] | None = None) -> str:
    """What to do about a run that takes its time; `environ` as in hwal.env.spelled."""
    return f"{spelled('hang_timeout', 'S', environ)} waits S seconds, {spelled('hang_timeout', 'off', environ)} for ever"


def _stuck_world(world: Mapping[int, Seen]) -> Doom:
    blamed = to_blame(world)
    if len(world) > 1 and all(world[rank].waits for rank in blamed):
        seconds = min(world[rank].idle for rank in blamed)
        places = "; ".join(f"rank {rank} in {world[rank].beat.waits} at {world[rank].beat.line}" for rank in blamed)
        steps = {world[rank].beat.step for rank in blamed}
        where = f" {_when(world[blamed[0]].beat)}" if len(steps) == 1 else ""
        return Doom(
            f"the ranks have waited for each other for {seconds:.0f} s{where}: {places}",
            "every rank must come to the same calls in the same order",
        )
    others = [rank for rank in sorted(world) if rank not in blamed]
    return Doom("; ".join(_stuck(rank, world) for rank in blamed), _who_waits(others, world))


def slow(rank: int, world: Mapping[int, Seen]) -> str:
    """The words about a rank that has made no progress for long, but may go on."""
    return f"{_stuck(rank, world)}. It goes on; {spelled('hang_timeout', 'S')} would end such a run after S seconds"


def apart(ranks: Sequence[int], port: int) -> str:
    """The words about ranks that rank 0 hears nothing of, although it trains with them."""
    subject = f"rank{'s' * (len(ranks) > 1)} {_some(ranks)}"
    return (
        f"note: {subject} cannot be watched: nothing comes to port {port} of rank 0's machine. A rank that waits for another "
        "is not ended now, however long; ports that the system picks are to be open between the machines"
    )


def gone(beat: Beat, step: int, how: str) -> Doom:
    """The words about a rank whose process ended without a last word. `step`: what the others had done."""
    seen = f"last seen at {beat.line}" if beat.step >= step else None
    step = max(step, beat.step)
    return Doom(f"rank {beat.rank} is gone after step {step}: its process {beat.pid} {how}", seen, lost=True)


def left(leave: Leave) -> Doom:
    """The words about a rank that ended while others need it."""
    if leave.error is None:
        why = "every rank must do the same number of steps, and come to the same calls"
        return Doom(f"rank {leave.rank} ended after step {leave.step}, while the others wait for it", why, lost=True)
    return Doom(f"rank {leave.rank} failed after step {leave.step}: {leave.error}", lost=True)


def _stuck(rank: int, world: Mapping[int, Seen]) -> str:
    seen, beat = world[rank], world[rank].beat
    if seen.silent:  # the others, who wait for it in a later step, know better how far it came
        beat = replace(beat, phase=TRAINING, step=max(other.beat.step for other in world.values()))
    subject = f"rank {rank}" if len(world) > 1 else "the run"
    when = _when(beat)
    if seen.silent and seen.stack:
        return f"{subject} has been stuck for {seen.idle:.0f} s {when}: {seen.stack}, in a call that lets no other Python run"
    if seen.silent:
        return f"{subject} has not been heard of for {seen.silent:.0f} s; it was last seen {when}: {beat.line}"
    if beat.phase == DATA:
        return (
            f"{subject} has waited {seen.idle:.0f} s for data {when}: {beat.source or 'the loader gave nothing'}; {beat.line}"
        )
    busy = BUSY.get(beat.phase, " in evaluation" if beat.phase == EVALUATING else "")
    if beat.limit is None:  # the script's own code, in which the others do not wait long
        return f"{subject} is busy {when}: {beat.line}"
    return f"{subject} has been stuck{busy} for {seen.idle:.0f} s {when}: {beat.line}"


def _when(beat: Beat) -> str:
    return f"in step {beat.step + 1}" if beat.phase in (DATA, TRAINING) else f"after step {beat.step}"


def _who_waits(ranks: Sequence[int], world: Mapping[int, Seen]) -> str | None:
    """`ranks 0, 2, 3 have waited 60 s for it in rt.step`, one call after another."""
    by_call: dict[str, list[int]] = {}
    for rank in ranks:
        by_call.setdefault(world[rank].beat.waits or "", []).append(rank)
    told = []
    for call, group in by_call.items():
        seconds = max(world[rank].idle for rank in group)
        subject = f"rank{'s' * (len(group) > 1)} {_some(group)}"
        told.append(f"{subject} {'have' if len(group) > 1 else 'has'} waited {seconds:.0f} s for it in {call}")
    return "; ".join(told) or None


def _some(ranks: Sequence[int]) -> str:
    return f"{', '.join(map(str, ranks[:SHOWN]))}{' …' if len(ranks) > SHOWN else ''}"
