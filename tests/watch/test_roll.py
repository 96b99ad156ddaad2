"""What a rank makes of those that have left."""

from __future__ import annotations

import pytest

from hwal.watch.beat import Beat, Leave
from hwal.watch.pulse import TRAINING
from hwal.watch.roll import LATE, Roll


def beat(idle: float, waits: str | None = "rt.barrier") -> Beat:
    return Beat(1, 101, "here", 5, TRAINING, 5, "train.py:9, in main", waits=waits, idle=idle, limit=60.0)


@pytest.mark.parametrize("since", [0.0, LATE / 2, LATE])
def test_a_long_wait_for_the_last_call_is_none_for_a_rank_that_left(since: float) -> None:
    """Rank 0 came late to the barrier and has left; rank 1 has waited in it for long, and is about to come out of it."""
    roll = Roll(0.5)
    roll.leaves(Leave(0, 5), now=100.0)
    assert roll.waited_for(beat(idle=70.0 + since), at=100.0 + since) is None


def test_who_still_waits_a_while_later_waits_in_vain() -> None:
    roll = Roll(0.5)
    first = Leave(0, 5)
    roll.leaves(first, now=100.0)
    roll.leaves(Leave(2, 5), now=103.0)
    assert roll.waited_for(beat(idle=LATE + 0.1), at=100.1 + LATE) == first
    assert roll.waited_for(beat(idle=1.0), at=100.1 + LATE) is None, "it has come further since"
    assert roll.waited_for(beat(idle=60.0, waits=None), at=160.0) is None, "it is at work of its own"


def test_nobody_has_left() -> None:
    assert Roll(0.5).waited_for(beat(idle=1e6), at=1e6) is None
