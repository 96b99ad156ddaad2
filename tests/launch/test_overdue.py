"""When the launcher ends ranks that do not by themselves. Time is given, not taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hwal.aside import born
from hwal.launch.outcome import ENDED, Outcome, read_ended
from hwal.launch.overdue import FAILED, GRACE, Beats, Failed, Overdue
from hwal.launch.signals import Signals
from hwal.watch.beat import Beat
from hwal.watch.pulse import TRAINING

ME = os.getpid()  # a process that is there, and that nobody is to stop
RANK = Outcome(0, ME, "cpu:0", 1.0)
BEAT = Beat(0, ME, "here", None, TRAINING, 3, "train.py:9, in work", limit=60.0, silence=65.0)
SLEEPER = [sys.executable, "-c", "import time; time.sleep(1000)"]


def ends(overdue: Overdue, ranks: dict[int, Outcome], beats: Beats, asked: str | None, seconds: float) -> float | None:
    """After how many seconds they are ended, if within so many."""
    begun = overdue._last
    for tick in range(1, int(seconds * 5)):
        if overdue.look(ranks, beats, asked, begun + tick / 5) is not None:
            return tick / 5
    return None


def test_nobody_is_ended_while_a_watchdog_is_at_work_or_none_is_yet() -> None:
    assert ends(Overdue(0.0, {}), {}, {}, None, 200) is None
    assert ends(Overdue(0.0, {}), {0: RANK}, {}, None, 200) is None, "its script has not come to hwal.start()"
    assert ends(Overdue(0.0, {}), {0: RANK}, {ME: (replace(BEAT, silence=None), 1)}, None, 200) is None, "--hang-timeout off"
    overdue = Overdue(0.0, {})
    for second in range(200):
        assert overdue.look({0: RANK}, {ME: (BEAT, second)}, "SIGTERM", float(second)) is None


def test_silence_of_all_watchdogs_ends_the_ranks() -> None:
    overdue = Overdue(0.0, {})
    assert ends(overdue, {0: RANK}, {ME: (BEAT, 1)}, None, 100) == pytest.approx(65.0, abs=1)
    doom = overdue.look({0: RANK}, {ME: (BEAT, 1)}, None, 1000.0)
    assert doom is not None and doom.what.endswith("for 65 s: rank 0 was last seen at train.py:9, in work")
    other = Outcome(1, ME, "cpu:1", 1.0)
    assert ends(Overdue(0.0, {}), {0: RANK, 1: replace(other, pid=ME + 1)}, {ME: (BEAT, 1)}, None, 100) is None, (
        "one is starting"
    )


def test_a_run_that_was_asked_to_end_has_its_grace() -> None:
    assert ends(Overdue(0.0, {}), {0: RANK}, {}, "SIGTERM", 100) == pytest.approx(GRACE, abs=1)
    assert ends(Overdue(0.0, {}), {0: RANK}, {ME: (BEAT, 1)}, "SIGTERM", 100) == pytest.approx(GRACE, abs=1)
    overdue = Overdue(0.0, {})
    assert ends(overdue, {0: replace(RANK, ended=2.0, exit=0)}, {}, "SIGTERM", 100) == pytest.approx(GRACE, abs=1)
    doom = overdue.look({0: replace(RANK, ended=2.0, exit=0)}, {}, "SIGTERM", 1000.0)
    assert doom is not None and doom.asked == "SIGTERM"
    assert doom.what == "SIGTERM: the ranks did not end within 30 s: their scripts are done"
    overdue = Overdue(0.0, {})
    assert ends(overdue, {0: RANK}, {}, None, 100) is None
    assert ends(overdue, {0: RANK}, {}, "SIGTERM", 100) == pytest.approx(GRACE, abs=1), "from the signal on"


def test_time_in_which_the_launcher_itself_was_stopped_does_not_count() -> None:
    overdue = Overdue(0.0, {})
    assert overdue.look({0: RANK}, {}, "SIGTERM", 1.0) is None
    assert overdue.look({0: RANK}, {}, "SIGTERM", 100_000.0) is None


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = [subprocess.Popen(SLEEPER) for _ in range(3)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_ranks_that_wait_for_one_that_failed_are_ended(tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]) -> None:
    """It too, if it does not get to its end; one that has ended well, and one that came later, are not."""
    failed, waits, restarted = sleepers
    ranks = {
        0: Outcome(0, failed.pid, "cpu:0", 1.0, ended=2.0, exit=1, error="planted"),
        1: Outcome(1, waits.pid, "cpu:1", 1.0),
        2: Outcome(2, ME, "cpu:2", 1.0, ended=2.0, exit=0),
    }
    watch = Failed(tmp_path)
    watch.look(ranks, 100.0)
    watch.look({**ranks, 3: Outcome(3, restarted.pid, "cpu:3", 0.0)}, 100.0 + FAILED / 2)
    assert [process.poll() for process in sleepers] == [None] * 3
    watch.look({**ranks, 3: Outcome(3, restarted.pid, "cpu:3", 0.0)}, 100.0 + FAILED)
    assert failed.wait(10) == waits.wait(10) == -9
    assert restarted.poll() is None
    assert read_ended(tmp_path) == {failed.pid, waits.pid}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_process_that_has_a_ranks_number_by_now_is_let_be(tmp_path: Path, sleepers: list[subprocess.Popen[bytes]]) -> None:
    """One that began at another time; and a rank is told, or ended, once."""
    stranger, known, failed = sleepers
    ranks = {
        0: Outcome(0, failed.pid, "cpu:0", 1.0, ended=2.0, exit=1, error="planted"),
        1: Outcome(1, stranger.pid, "cpu:1", 1.0, born=(born(stranger.pid) or 0) - 1),
        2: Outcome(2, known.pid, "cpu:2", 1.0, born=born(known.pid)),
    }
    Signals().pass_on({1: ranks[1]}, signal.SIGTERM, tmp_path)
    watch = Failed(tmp_path)
    for now in (100.0, 100.0 + FAILED, 100.2 + FAILED):
        watch.look(ranks, now)
    assert known.wait(10) == failed.wait(10) == -9
    assert stranger.poll() is None
    assert (tmp_path / ENDED).read_text().split() == [str(failed.pid), str(known.pid)]
