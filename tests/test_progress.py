"""Progress: the counters, against a plain model of the loop that they count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hwal.checkpoint import Position
from hwal.progress import Progress

Event = tuple[int, int, int]  # (epoch, feed, number of the global batch in it)


def run(
    progress: Progress, epochs: int | None, last_step: int | None, lengths: list[int], save_at: int
) -> tuple[list[Event], Position]:
    """A script's loop over feeds of these lengths in every epoch: what it does, and where it stands after `save_at` steps."""
    done: list[Event] = []
    saved = progress.position()
    for epoch in progress.epochs(epochs, last_step):
        for feed, length in enumerate(lengths):
            skip = progress.begin_feed()
            if skip is None or progress.finished:
                continue
            for number in range(skip, length):
                done.append((epoch, feed, number))
                progress.end_step(samples=2)
                if progress.step == save_at:
                    saved = progress.position()
                if progress.finished:
                    break
            progress.end_feed()
    return done, saved


@given(
    st.integers(1, 4), st.none() | st.integers(0, 20), st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(1, 30)
)
def test_a_resumed_loop_does_what_was_left(epochs: int, last_step: int | None, lengths: list[int], save_at: int) -> None:
    whole, saved = run(Progress(7, 1), epochs, last_step, lengths, save_at)
    expected = [(e, f, n) for e in range(epochs) for f, length in enumerate(lengths) for n in range(length)][:last_step]
    assert whole == expected
    resumed = Progress(0, 3)
    resumed.restore(saved)
    rest, _ = run(resumed, epochs, last_step, lengths, save_at)
    assert rest == whole[saved.step :]
    assert (resumed.seed, resumed.step, resumed.samples) == (7, len(whole), 2 * len(whole))


@given(st.integers(1, 20), st.integers(0, 20), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.booleans())
def test_more_steps_go_on_where_fewer_ended(first: int, more: int, lengths: list[int], anew: bool) -> None:
    """`--steps 200`, then `--resume --steps 400`; or a second loop in the same script."""
    whole, _ = run(Progress(7, 1), None, first + more, lengths, 0)
    progress = Progress(7, 1)
    done, _ = run(progress, None, first, lengths, 0)
    if anew:
        position, progress = progress.position(), Progress(0, 1)
        progress.restore(position)
    rest, _ = run(progress, None, first + more, lengths, 0)
    assert done + rest == whole


@given(st.lists(st.integers(1, 5), max_size=4))
def test_without_epochs_every_feed_is_one(lengths: list[int]) -> None:
    progress = Progress(7, 1)
    for epoch, length in enumerate(lengths):
        assert (progress.epoch, progress.begin_feed()) == (epoch, 0)
        for _ in range(length):
            progress.end_step(1)
        progress.end_feed()
    assert progress.step == sum(lengths)


def test_a_feed_left_early_begins_anew() -> None:
    progress = Progress(7, 1)
    assert progress.begin_feed() == 0
    progress.end_step(1)
    assert progress.begin_feed() == 0 and progress.feed == 1 and progress.steps_in_feed == 0


def test_steps_in_all() -> None:
    progress = Progress(7, 1)
    assert progress.steps_in_all(None) is None and progress.steps_in_all(5) == 5
    seen = [
        progress.steps_in_all(5) for _ in progress.epochs(3, None) if progress.begin_feed() == 0 and not _advance(progress, 5)
    ]
    assert seen == [15, 15, 15]
    for _ in progress.epochs(None, 40):
        assert progress.steps_in_all(5) == 40
        break


def _advance(progress: Progress, steps: int) -> None:
    for _ in range(steps):
        progress.end_step(1)


def test_saved_after_the_feed_of_an_epoch_the_next_one_begins() -> None:
    progress = Progress(7, 1)
    seen = []
    for epoch in progress.epochs(3, None):
        assert progress.begin_feed() == 0
        _advance(progress, 5)
        within = progress.position()
        progress.end_feed()
        seen.append((epoch, within.epoch, within.steps_in_feed, progress.position().epoch, progress.position().steps_in_feed))
    assert seen == [(0, 0, 5, 1, 0), (1, 1, 5, 2, 0), (2, 2, 5, 3, 0)]
