"""Whole worlds under a clock that is only counted: no run that goes on is called stuck, every stuck rank is named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwal.watch import judge
from hwal.watch.look import Look
from hwal.watch.patience import LONG, Patience
from hwal.watch.pulse import DATA, PREPARING, SAVING, TRAINING, Pulse
from hwal.watch.roll import OVERDUE, Roll
from hwal.watch.spot import Spot

NEVER = float("inf")
SLACK = 3.0  # looks: a hang begins between two of them, and is heard of in the next


@dataclass
class Rank:
    """One rank: how long its part of each step takes it, before it waits for the others in rt.step."""

    rank: int
    takes: list[float]
    asked: float | str | None
    size: int
    phases: list[str]
    pulse: Pulse = field(default_factory=Pulse)
    step: int = 0
    begun: float = 0.0
    holds_lock: bool = False
    bytes_a_second: float = 5000.0

    descriptor: int | None = None

    def __post_init__(self) -> None:
        self.patience = Patience(self.asked, 0.0)
        self.look = Look(self.rank, self.size == 1, self, self.pulse, lambda: self.step, self.patience, 0.0)
        self.now = 0.0

    def is_there(self) -> bool:
        """At the end of its step, where it waits."""
        return self.now - self.begun >= self.takes[self.step]

    def spot(self) -> Spot:
        line = f"train.py:{self.rank}, in work"
        return Spot(line, waits="rt.step" if self.is_there() else None)

    def seconds(self) -> float:
        return 0.0

    def bytes(self) -> int:
        return int(self.now * self.bytes_a_second)

    def source(self, loader: Any) -> str:
        return "Rows gave nothing"


@dataclass
class World:
    """Attributes:
    alarm: when it was called stuck, and in which words; None before.
    """

    ranks: list[Rank]
    alarm: tuple[float, judge.Doom] | None = None

    def run(self, until: float, jump_at: float = NEVER, jump: float = 0.0) -> None:
        """A look a tick, until the steps are done, or so many seconds have passed. `jump`: what the clock skips, once."""
        tick = self.ranks[0].patience.tick
        roll, now, training = Roll(tick), 0.0, 0.0
        while training < until and self.alarm is None:
            training += tick
            now += tick
            if jump and training >= jump_at:  # nobody ran meanwhile
                now, jump = now + jump, 0.0
                for rank in self.ranks:
                    rank.begun += now - training
            self.train(now)
            if self.ranks[0].step >= len(self.ranks[0].takes):
                return
            self.watch(roll, now, tick)

    def train(self, now: float) -> None:
        for rank in self.ranks:
            rank.now = now
        while all(rank.step < len(rank.takes) and rank.is_there() for rank in self.ranks):
            begun = max(rank.begun + rank.takes[rank.step] for rank in self.ranks)
            for rank in self.ranks:
                rank.step, rank.begun = rank.step + 1, begun
        for rank in self.ranks:
            if rank.step < len(rank.takes):
                rank.pulse.phase = TRAINING if rank.is_there() else rank.phases[rank.step % len(rank.phases)]

    def watch(self, roll: Roll, now: float, tick: float) -> None:
        roll.wait(tick)
        first, *others = self.ranks
        for rank in others:
            if not rank.holds_lock or rank.takes[rank.step] < NEVER:
                roll.heard(rank.rank, rank.look.take(now, None))
        seen = roll.world(first.look.take(now, None))
        if judge.stalled(seen):
            self.alarm = now, judge.stuck(seen)


def world(size: int, seconds: list[list[float]], asked: float | str | None, phases: list[str]) -> World:
    return World([Rank(rank, seconds[rank], asked, size, phases) for rank in range(size)])


SIZES = st.integers(1, 4)
PHASES = st.lists(st.sampled_from([TRAINING, DATA]), min_size=1, max_size=3)


def steps(size: int, longest: float, count: int = 12, least: float = 0.0) -> st.SearchStrategy[list[list[float]]]:
    one = st.floats(least, longest)
    return st.lists(st.lists(one, min_size=count, max_size=count), min_size=size, max_size=size)


@settings(max_examples=20, deadline=None)
@given(st.data(), SIZES, PHASES, st.sampled_from([8.0, 40.0, 300.0]))
def test_steps_of_any_length_below_the_limit_are_no_hang(
    data: st.DataObject, size: int, phases: list[str], limit: float
) -> None:
    """The limit was asked for: a rank may take all of it, less a look, in any step, and the others wait for it."""
    tick = Patience(limit, 0.0).tick
    run = world(size, data.draw(steps(size, limit - 2 * tick)), limit, phases)
    run.run(NEVER)
    assert run.alarm is None


@settings(max_examples=20, deadline=None)
@given(st.data(), SIZES, PHASES, st.floats(0.05, 20.0))
def test_by_default_a_step_may_take_fifteen_times_as_long_as_most(
    data: st.DataObject, size: int, phases: list[str], usual: float
) -> None:
    """One rank's does, now and then, and the others wait for it."""
    factors = st.lists(st.sampled_from([1.0, 1.0, 1.0, 15.0]), min_size=11, max_size=11)
    seconds = [
        [usual] + [usual * factor for factor in (data.draw(factors) if rank == 0 else [1.0] * 11)] for rank in range(size)
    ]
    run = world(size, seconds, None, phases)
    run.run(NEVER)
    assert run.alarm is None


@settings(max_examples=6, deadline=None)
@given(st.data(), SIZES, PHASES, st.sampled_from([PREPARING, SAVING]))
def test_what_takes_long_by_nature_is_no_hang(data: st.DataObject, size: int, phases: list[str], phase: str) -> None:
    """One rank is at it in its third step for just less than half an hour, and the others wait."""
    seconds = data.draw(steps(size, 30.0, 5))
    whom = data.draw(st.integers(0, size - 1))
    seconds[whom][2] = LONG - 60.0
    run = world(size, seconds, 40.0, phases)
    run.ranks[whom].phases = [*(phases * 3)[:2], phase, *(phases * 3)[:2]]
    run.run(NEVER)
    assert run.alarm is None


@pytest.mark.parametrize("phase", [PREPARING, SAVING])
@pytest.mark.parametrize("size", [1, 3])
def test_files_that_are_read_or_written_are_progress(phase: str, size: int) -> None:
    """As long as they are, and only then: a watchdog's own few bytes are none."""
    for rate, hangs in ((1e6, False), (5000.0, True)):
        run = world(size, [[1.0, 2 * LONG, 1.0] for _ in range(size)], 40.0, [TRAINING, phase])
        for rank in run.ranks:
            rank.bytes_a_second = rate
        run.run(NEVER)
        assert (run.alarm is not None) == hangs
        assert run.alarm is None or LONG <= run.alarm[0] <= LONG + 5.0


@settings(max_examples=20, deadline=None)
@given(st.data(), st.integers(2, 4), PHASES, st.sampled_from([8.0, 40.0, None]), st.integers(4, 9), st.booleans())
def test_a_rank_that_comes_no_more_is_named(
    data: st.DataObject, size: int, phases: list[str], asked: float | None, step: int, holds_lock: bool
) -> None:
    """At the limit, and not before; in Python, and in a call that lets no other Python run, so that nothing is heard of it."""
    limit = asked or 60.0
    longest = 2.0
    seconds = data.draw(steps(size, longest, least=1.0))  # a look must see a step to know how long one takes
    whom = data.draw(st.integers(1, size - 1))
    seconds[whom][step] = NEVER
    run = world(size, seconds, asked, phases)
    run.ranks[whom].holds_lock = holds_lock
    run.run(100 * limit)
    assert run.alarm is not None
    when, doom = run.alarm
    begun = max(rank.begun for rank in run.ranks)
    assert limit - SLACK <= when - begun <= limit + longest + (SLACK + OVERDUE * holds_lock)
    assert doom.what.startswith(f"rank {whom} ") and f" in step {step + 1}: " in doom.what
    assert doom.what.endswith(f"train.py:{whom}, in work")
    assert doom.why is not None
    assert (
        all(str(rank) in doom.why for rank in range(size) if rank != whom) and f" {whom}" not in doom.why.partition(" have")[0]
    )


@settings(max_examples=20, deadline=None)
@given(st.data(), SIZES, PHASES, st.floats(0.0, 60.0), st.sampled_from([60.0, 3600.0, 1e6]))
def test_a_clock_that_jumps_is_no_hang(data: st.DataObject, size: int, phases: list[str], at: float, hours: float) -> None:
    """All processes were stopped, or the machine slept: nobody looked meanwhile."""
    run = world(size, data.draw(steps(size, 10.0)), 20.0, phases)
    run.run(NEVER, at, hours)
    assert run.alarm is None
