"""How long a rank may go without progress. Time is given, not taken."""

from __future__ import annotations

from hwal.watch.patience import LONG, MARGIN, Patience
from hwal.watch.pulse import DATA, PREPARING, SAVING, SCRIPT, TRAINING
from hwal.watch.spot import Spot

HERE = Spot("train.py:3, in main")


def test_time_without_progress_adds_up_and_progress_ends_it() -> None:
    patience = Patience(40.0, 0.0)
    for now in range(1, 6):
        patience.look(float(now), 0, "mark")
    assert patience.idle == 4.0
    patience.look(6.0, 1, "another")
    assert patience.idle == 0.0


def test_a_process_that_was_stopped_is_not_stuck() -> None:
    """SIGSTOP for an hour, or a laptop asleep: the watchdog itself was not there to see."""
    patience = Patience(40.0, 0.0)
    patience.look(1.0, 0, "mark")
    patience.look(3600.0, 0, "mark")
    assert patience.idle <= 3 * patience.tick


def test_the_limit_is_twenty_median_steps_and_at_least_a_minute() -> None:
    patience = Patience(None, 0.0)
    assert patience.limit(TRAINING, HERE) == LONG, "nobody knows yet how long a step takes"
    now = 0.0
    for step in range(1, 8):
        for _ in range(10):
            now += 1.0
            patience.look(now, step - (now % 10 > 0), now)
    assert patience.limit(TRAINING, HERE) == patience.limit(DATA, HERE) == 200.0
    quick = Patience(None, 0.0)
    for step in range(9):
        quick.look(float(step), 10 * step, step)
    assert quick.limit(TRAINING, HERE) == 60.0


def test_what_is_asked_for_counts_from_the_first_step_on() -> None:
    patience = Patience(5.0, 0.0)
    assert patience.limit(TRAINING, HERE) == 5.0
    assert patience.limit(SAVING, HERE) == patience.limit(PREPARING, HERE) == LONG
    assert patience.limit(TRAINING, Spot("train.py:3, in main", compiling=True)) == LONG
    assert Patience(2 * LONG, 0.0).limit(SAVING, HERE) == 2 * LONG


def test_the_scripts_own_code_may_take_any_time_unless_it_waits_for_others() -> None:
    patience = Patience(5.0, 0.0)
    assert patience.limit(SCRIPT, HERE) is None
    assert patience.limit(SCRIPT, Spot("train.py:3, in main", waits="rt.barrier")) == 5.0


def test_nobody_is_hurried_in_a_debugger_or_when_it_is_off() -> None:
    assert Patience(5.0, 0.0).limit(TRAINING, Spot("train.py:3, in main", debugging=True)) is None
    assert Patience("off", 0.0).limit(TRAINING, HERE) is None


def test_a_run_that_was_asked_to_end_has_half_a_minute_or_three_steps() -> None:
    quick = Patience(None, 0.0)
    for step in range(9):
        quick.look(float(step), step, step)
    assert (quick.limit(TRAINING, HERE), quick.limit(TRAINING, HERE, hurried=True)) == (60.0, 30.0)
    assert Patience(None, 0.0).limit(TRAINING, HERE, hurried=True) == 30.0, "before the first step too"
    assert Patience(5.0, 0.0).limit(TRAINING, HERE, hurried=True) == 5.0
    assert quick.limit(SAVING, HERE, hurried=True) == LONG, "a save may take as long as it needs"
    assert quick.limit(PREPARING, HERE, hurried=True) == 30.0, "there is nothing to save"
    assert quick.limit(SCRIPT, HERE, hurried=True) == 30.0, "it stands still"
    assert Patience("off", 0.0).limit(TRAINING, HERE, hurried=True) == 30.0, "off is about hangs"
    assert Patience("off", 0.0).limit(TRAINING, Spot("train.py:3, in main", debugging=True), hurried=True) is None


def test_a_rank_that_is_silent_hangs_later_than_one_that_says_so() -> None:
    assert Patience(5.0, 0.0).silence(5.0) == 5.0 + MARGIN
    assert Patience(5.0, 0.0).silence(None) == LONG + MARGIN
    assert Patience(None, 0.0).silence(60.0) == LONG + MARGIN, "what holds by default is for ranks that others wait for"
    assert Patience("off", 0.0).silence(None) is None
    assert Patience("off", 0.0).silence(30.0, hurried=True) == 30.0 + MARGIN
