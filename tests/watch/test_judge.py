"""What is said of a world that is stuck, or has lost a rank; every message as printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwal.env import PLAN
from hwal.errors import HwalError
from hwal.watch import judge
from hwal.watch.beat import Beat, Doom, Leave
from hwal.watch.judge import Seen
from hwal.watch.patience import LONG
from hwal.watch.pulse import DATA, EVALUATING, PREPARING, SAVING, SCRIPT, TRAINING

STUCK = Beat(1, 101, "here", 5, TRAINING, 40, "train.py:30, in preprocess", idle=60.2, limit=60.0)
WAITS = Beat(0, 100, "here", 5, TRAINING, 40, "train.py:12, in main", waits="rt.step", idle=60.1, limit=60.0)
LONGER = "\n  try:   --hang-timeout S waits S seconds, --hang-timeout off for ever"


@pytest.fixture(autouse=True)
def by_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `hwal train` starts its ranks."""
    monkeypatch.setenv(PLAN, "{}")


def test_a_run_that_hwal_did_not_start_has_no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLAN)
    hint = "HWAL_HANG_TIMEOUT=S waits S seconds, HWAL_HANG_TIMEOUT=off for ever"
    assert judge.stuck(world(STUCK, WAITS)).hint == hint
    assert judge.slow(1, world(STUCK)).endswith("It goes on; HWAL_HANG_TIMEOUT=S would end such a run after S seconds")


def world(*beats: Beat | Seen) -> dict[int, Seen]:
    seen = [beat if isinstance(beat, Seen) else Seen(beat) for beat in beats]
    return {each.beat.rank: each for each in seen}


def test_whoever_waits_for_a_rank_that_is_not_heard_of_is_not_stuck() -> None:
    """It may be at what takes long by nature."""
    assert judge.stalled(world(WAITS)) and not judge.stalled(world(WAITS), whole=False)
    assert judge.stalled(world(STUCK, WAITS), whole=False), "one that is itself past its limit is"


def printed(doom: Doom) -> str:
    return str(HwalError(doom.what, why=doom.why, hint=doom.hint))


SAID = [
    (
        world(STUCK, WAITS, replace(WAITS, rank=2), replace(WAITS, rank=3, waits="rt.mean")),
        "rank 1 has been stuck for 60 s in step 41: train.py:30, in preprocess\n"
        "  why:   ranks 0, 2 have waited 60 s for it in rt.step; rank 3 has waited 60 s for it in rt.mean" + LONGER,
    ),
    (
        world(replace(STUCK, rank=0)),
        "the run has been stuck for 60 s in step 41: train.py:30, in preprocess" + LONGER,
    ),
    (
        world(replace(STUCK, phase=DATA, source="Rows gave nothing (worker: process 7 at rows.py:3, in read)"), WAITS),
        "rank 1 has waited 60 s for data in step 41: Rows gave nothing (worker: process 7 at rows.py:3, in read); "
        "train.py:30, in preprocess\n  why:   rank 0 has waited 60 s for it in rt.step" + LONGER,
    ),
    (
        world(replace(STUCK, phase=SCRIPT, limit=None, idle=0.0), replace(WAITS, phase=SCRIPT, waits="rt.barrier")),
        "rank 1 is busy after step 40: train.py:30, in preprocess\n  why:   rank 0 has waited 60 s for it in rt.barrier"
        + LONGER,
    ),
    (
        world(replace(STUCK, phase=EVALUATING), WAITS),
        "rank 1 has been stuck in evaluation for 60 s after step 40: train.py:30, in preprocess\n"
        "  why:   rank 0 has waited 60 s for it in rt.step" + LONGER,
    ),
    (
        world(Seen(replace(STUCK, step=38, idle=0.2), 61.0, "rows.py:9, in match"), WAITS),
        "rank 1 has been stuck for 61 s in step 41: rows.py:9, in match, in a call that lets no other Python run\n"
        "  why:   rank 0 has waited 60 s for it in rt.step" + LONGER,
    ),
    (
        world(Seen(replace(STUCK, idle=0.2), 61.0), WAITS),
        "rank 1 has not been heard of for 61 s; it was last seen in step 41: train.py:30, in preprocess\n"
        "  why:   rank 0 has waited 60 s for it in rt.step" + LONGER,
    ),
    (
        world(replace(STUCK, waits="rt.barrier"), WAITS),
        "the ranks have waited for each other for 60 s in step 41: rank 0 in rt.step at train.py:12, in main; "
        "rank 1 in rt.barrier at train.py:30, in preprocess\n"
        "  why:   every rank must come to the same calls in the same order" + LONGER,
    ),
]


@pytest.mark.parametrize(("seen", "text"), SAID)
def test_a_stuck_world_as_printed(seen: dict[int, Seen], text: str) -> None:
    assert judge.stalled(seen)
    assert printed(judge.stuck(seen)) == text


def test_a_run_that_was_asked_to_end_says_so() -> None:
    """It has no longer limit to ask for."""
    doom = judge.stuck(world(STUCK, replace(WAITS, idle=30.2, limit=30.0, asked="SIGTERM")))
    assert doom.asked == "SIGTERM" and printed(doom) == (
        "SIGTERM: rank 1 has been stuck for 60 s in step 41: train.py:30, in preprocess\n"
        "  why:   rank 0 has waited 30 s for it in rt.step; the run was asked to end, and waits no longer"
    )
    alone = judge.stuck(world(replace(STUCK, rank=0, asked="SIGINT")))
    assert (alone.what[:7], alone.why, alone.hint) == ("SIGINT:", "the run was asked to end, and waits no longer", None)


def test_a_lost_rank_as_printed() -> None:
    assert printed(judge.gone(STUCK, 40, "was killed by SIGKILL")) == (
        "rank 1 is gone after step 40: its process 101 was killed by SIGKILL\n  why:   last seen at train.py:30, in preprocess"
    )
    assert printed(judge.gone(STUCK, 43, "was killed by SIGKILL")) == (  # the others have been on since it was seen
        "rank 1 is gone after step 43: its process 101 was killed by SIGKILL"
    )
    assert printed(judge.left(Leave(1, 12, "ValueError: no"))) == "rank 1 failed after step 12: ValueError: no"
    assert printed(judge.left(Leave(1, 12))) == (
        "rank 1 ended after step 12, while the others wait for it\n"
        "  why:   every rank must do the same number of steps, and come to the same calls"
    )


@pytest.mark.parametrize("phase", [SAVING, PREPARING])
def test_ranks_wait_for_one_that_is_at_what_takes_long(phase: str) -> None:
    saving = replace(STUCK, phase=phase, limit=1800.0, announced=True)
    assert not judge.stalled(world(saving, WAITS))
    assert judge.stalled(world(replace(saving, idle=1800.0), WAITS)), "its own limit"
    assert judge.stalled(world(replace(saving, waits="rt.save"), WAITS)), "it only waits for others too"
    assert judge.stalled(world(saving, WAITS, replace(STUCK, rank=2))), "another is stuck by itself"


def test_a_debugger_holds_all() -> None:
    assert not judge.stalled(world(replace(STUCK, limit=None, announced=True), WAITS))


def test_silence_counts_as_no_progress() -> None:
    assert judge.stalled(world(Seen(replace(STUCK, idle=1.0), silent=59.5), replace(WAITS, idle=3.0)))
    assert not judge.stalled(world(Seen(replace(STUCK, idle=1.0), silent=5.0), replace(WAITS, idle=6.0)))


def test_by_default_only_what_others_wait_for_ends_a_run() -> None:
    """A script may be long in its own code, as long as nobody waits for it; half an hour is too long for anything."""
    mild = replace(STUCK, firm=False)
    assert not judge.stalled({1: Seen(mild)})
    assert not judge.stalled({0: Seen(replace(mild, rank=0)), 1: Seen(mild)})
    assert judge.stalled({0: Seen(WAITS), 1: Seen(mild)})
    just_come = replace(WAITS, idle=2.0)  # all were long at something, and the first is done
    assert not judge.stalled({0: Seen(just_come), 1: Seen(mild)})
    assert judge.stalled({1: Seen(replace(mild, idle=LONG))})
    assert judge.stalled({1: Seen(STUCK)})
    assert judge.slow(1, {0: Seen(WAITS), 1: Seen(mild)}) == (
        "rank 1 has been stuck for 60 s in step 41: train.py:30, in preprocess. "
        "It goes on; --hang-timeout S would end such a run after S seconds"
    )
