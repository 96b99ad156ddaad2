"""The watchdogs of a world, each over a thread of this process."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hwal.aside import place
from hwal.watch.beat import Beat, Doom
from hwal.watch.judge import Seen, stalled
from hwal.watch.link import Hub, Line, Spoke
from hwal.watch.pulse import PREPARING, SAVING, TRAINING, Pulse
from hwal.watch.spot import Signs
from hwal.watch.watchdog import Member, Watchdog

LIMIT = 1.0  # seconds
PATIENCE = 20.0  # seconds for what must come at some time
SIGNS = Signs(collectives=("threading",))  # a rank waits for others where it waits for an event


pytestmark = pytest.mark.slow  # seconds of waiting for what must come, or must not; test_worlds.py has the judgement itself


@pytest.fixture(autouse=True)
def no_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer in C would end the tests themselves."""
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *args, **options: None)


class Rank:
    """One rank: what it does, step by step, on a thread of its own; `doomed` once it would have been ended."""

    def __init__(self, rank: int, size: int, hub: Hub | None, asked: float | str = LIMIT) -> None:
        self.pulse, self.steps = Pulse(), 0
        self.doom: Doom | None = None
        self.doomed, self.done = threading.Event(), threading.Event()
        self.link: Hub | Spoke | None = hub if rank == 0 or hub is None else Spoke("127.0.0.1", hub.port, hub.key, rank)
        self.dog = Watchdog(Member(rank, size), self.pulse, lambda: self.steps, asked, SIGNS, self)
        self.signal: str | None = None
        self.shown = 0
        self.told: list[str] = []
        self.breaks = False

    def asked(self) -> str | None:
        return self.signal

    def show(self, beat: Beat) -> None:
        self.shown += 1
        if self.breaks:
            raise MemoryError("planted")

    def rest(self) -> None:
        return

    def tell(self, line: str) -> None:
        self.told.append(line)

    def end(self, doom: Doom) -> None:
        self.doom = doom
        self.doomed.set()
        self.dog._stopped.set()  # where the process would end

    def run(self, job: Callable[[Rank], None]) -> None:
        def work() -> None:
            self.dog.start(self.link)
            self.pulse.phase = TRAINING
            job(self)

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def leave(self, error: BaseException | None = None) -> None:
        self.done.set()
        self.dog.leave(error)
        self.thread.join()


def stuck(rank: Rank) -> None:
    while not rank.done.is_set():
        time.sleep(LIMIT / 100)


def waits(rank: Rank) -> None:
    rank.done.wait()


def trains(rank: Rank) -> None:
    while not rank.done.wait(LIMIT / 20):
        rank.steps += 1


def test_a_run_of_one_that_is_stuck() -> None:
    rank = Rank(0, 1, None)
    rank.run(stuck)
    assert rank.doomed.wait(PATIENCE) and rank.doom is not None
    assert rank.doom.what.startswith("the run has been stuck for 1 s in step 1: test_watchdog.py:")
    rank.leave()


def saves(rank: Rank) -> None:
    with rank.pulse.during(SAVING):
        rank.done.wait()


def prepares(rank: Rank) -> None:
    with rank.pulse.during(PREPARING):
        rank.done.wait()


@pytest.mark.parametrize(("job", "asked"), [(trains, LIMIT), (saves, LIMIT), (stuck, "off")])
def test_what_is_no_hang(job: Callable[[Rank], None], asked: float | str) -> None:
    rank = Rank(0, 1, None, asked)
    rank.run(job)
    assert not rank.doomed.wait(2 * LIMIT)
    rank.leave()


@pytest.mark.parametrize("asked", ["off", LIMIT])
def test_a_run_that_was_asked_to_end_is_not_held_up(monkeypatch: pytest.MonkeyPatch, asked: float | str) -> None:
    """Also while it prepares, and where no hang would end it; a save is let be."""
    monkeypatch.setattr("hwal.watch.patience.HURRY", LIMIT)
    ranks = [Rank(0, 1, None, asked) for _ in range(3)]
    for rank, job in zip(ranks, (stuck, prepares, saves), strict=True):
        rank.signal = "SIGTERM"
        rank.run(job)
    for rank in ranks[:2]:
        assert rank.doomed.wait(PATIENCE) and rank.doom is not None
        assert rank.doom.asked == "SIGTERM" and rank.doom.what.startswith("SIGTERM: the run has been stuck ")
    assert not ranks[2].doomed.is_set()
    for rank in ranks:
        rank.leave()


def test_all_ranks_end_with_the_same_words() -> None:
    hub = Hub("127.0.0.1")
    ranks = [Rank(number, 3, hub) for number in range(3)]
    for rank, job in zip(ranks, (stuck, trains, stuck), strict=True):
        rank.run(job)
    assert all(rank.doomed.wait(PATIENCE) for rank in ranks)
    words = {rank.doom.what for rank in ranks if rank.doom}
    assert len(words) == 1 and "rank 2 has been stuck" in words.pop()
    for rank in ranks:
        rank.leave()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_whose_line_closes_is_gone(lost: int) -> None:
    hub = Hub("127.0.0.1")
    ranks = [Rank(number, 2, hub) for number in range(2)]
    for rank in ranks:
        rank.run(trains)
    other = ranks[1 - lost]
    while not other.shown or lost not in other.dog._roll.beats:  # until it has been heard of
        assert not other.doomed.wait(0.02)
    ranks[lost].dog._stopped.set()  # it closes its sockets, and says nothing
    assert other.doomed.wait(PATIENCE) and other.doom is not None
    assert other.doom.what.startswith(f"rank {lost} is gone after step ") and other.doom.lost
    for rank in ranks:
        rank.leave()


def test_a_rank_that_is_not_heard_of_may_be_at_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall stands between two machines: whoever waits cannot know for what, on either side. Rank 0 says so, once."""
    monkeypatch.setattr("hwal.watch.watchdog.JOIN", LIMIT)
    hub = Hub("127.0.0.1")
    ranks = [Rank(0, 2, hub), Rank(1, 2, None)]
    for rank in ranks:
        rank.run(waits)
    assert not any(rank.doomed.wait(2 * LIMIT) for rank in ranks)
    assert [len(rank.told) for rank in ranks] == [1, 0]
    assert ranks[0].told[0].startswith(f"note: rank 1 cannot be watched: nothing comes to port {hub.port} of rank 0's machine")
    for rank in ranks:
        rank.leave()


@pytest.mark.parametrize("broken", [0, 1])
def test_a_rank_whose_watchdog_breaks_is_not_lost(broken: int) -> None:
    """It stands apart, and says so."""
    hub = Hub("127.0.0.1")
    ranks = [Rank(number, 2, hub) for number in range(2)]
    for rank in ranks:
        rank.run(waits)
    other = ranks[1 - broken]
    while not other.shown or broken not in other.dog._roll.beats:
        assert not other.doomed.wait(0.02)
    ranks[broken].breaks = True
    assert not any(rank.doomed.wait(2 * LIMIT) for rank in ranks)
    said = f"note: rank {broken} stands apart from the watch over hangs from here on: MemoryError: planted"
    assert [rank.told for rank in ranks] == ([[said], []] if broken == 0 else [[said], [said]])
    for rank in ranks:
        rank.leave()


def test_the_last_word_is_said_before_the_line_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread closes it as soon as it is told to stop."""
    hub = Hub("127.0.0.1")
    ranks = [Rank(number, 2, hub) for number in range(2)]
    for rank in ranks:
        rank.run(trains)
    stopped: list[bool] = []
    send = Line.send

    def look(line: Line, message: Any) -> None:
        if "left" in message:
            stopped.append(ranks[1].dog._stopped.is_set())
        send(line, message)

    monkeypatch.setattr(Line, "send", look)
    ranks[1].leave()
    assert stopped[0] is False
    assert not ranks[0].doomed.wait(LIMIT)
    ranks[0].leave()


def test_all_ranks_that_wait_for_each_other_are_stuck() -> None:
    hub = Hub("127.0.0.1")
    ranks = [Rank(number, 2, hub) for number in range(2)]
    for rank in ranks:
        rank.run(waits)
    for rank in ranks:
        assert rank.doomed.wait(PATIENCE) and rank.doom is not None
        assert rank.doom.what.startswith("the ranks have waited for each other for 1 s in step 1: ") and not rank.told
        rank.leave()


def test_a_rank_that_failed_takes_the_others_with_it_and_one_that_is_done_does_not() -> None:
    hub = Hub("127.0.0.1")
    ranks = [Rank(number, 3, hub) for number in range(3)]
    for rank in ranks:
        rank.run(trains)
    ranks[1].leave()
    assert not ranks[0].doomed.wait(LIMIT)
    ranks[2].leave(ValueError("planted"))
    assert ranks[0].doomed.wait(PATIENCE) and ranks[0].doom is not None
    assert ranks[0].doom.what.startswith("rank 2 failed after step ") and ranks[0].doom.what.endswith("ValueError: planted")
    ranks[0].leave()


def test_who_is_gone_is_known_after_an_error_about_a_connection() -> None:
    hub = Hub("127.0.0.1")
    ranks = [Rank(number, 2, hub) for number in range(2)]
    for rank in ranks:
        rank.run(trains)
    ranks[1].leave(ValueError("planted"))
    error = ranks[0].dog.explain()
    assert error is not None and "rank 1 failed" in error.what
    ranks[0].leave(error)
    alone = Rank(0, 1, None)
    alone.run(trains)
    assert alone.dog.explain() is None
    alone.leave()


SAVED = Beat(1, os.getpid(), place(), 5, SAVING, 3, "train.py:9, in main", idle=1.0, limit=1800.0, announced=True)


@pytest.mark.parametrize(("late", "ours", "held"), [(False, False, True), (True, True, True), (True, False, False)])
def test_a_silent_rank_that_saved_when_it_was_last_heard_of_may_have_come_further(late: bool, ours: bool, held: bool) -> None:
    """It hangs in a call right after: others would wait for half an hour."""
    rank = Rank(0, 2, None)
    rank.dog._watched = SimpleNamespace(is_ours=lambda pid, descriptor: ours)  # type: ignore[assignment]
    waits = Beat(0, os.getpid(), place(), 5, TRAINING, 3, "train.py:9, in main", waits="rt.step", idle=61.0, limit=60.0)
    seen = rank.dog._by_now(Seen(SAVED, 61.0), late)
    assert stalled({0: Seen(waits), 1: seen}) != held
    assert rank.dog._by_now(Seen(SAVED), late).beat == SAVED, "as long as it says so itself"
