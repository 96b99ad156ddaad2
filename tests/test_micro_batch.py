"""The search for a micro-batch: which sizes are tried, and where that is kept."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwal.micro_batch import CACHE, FILE, NEAR, Tried, cache_path, cached, read_tries, remember, write_tries


def search(share: int, room: int) -> tuple[list[int], Tried]:
    """The sizes that are tried where `room` rows fit, and what is known in the end."""
    tried, sizes = Tried("a model", share), []
    while not tried.settled and (rows := tried.next()):
        sizes.append(rows)
        tried = tried.fitted(rows) if rows <= room else tried.failed(rows)
    return sizes, tried


@pytest.mark.parametrize(
    ("share", "room", "sizes"),
    [
        (64, 64, [64]),
        (64, 63, [64, 32]),  # nothing between takes fewer forwards
        (64, 20, [64, 32, 16, 22, 16]),  # the one that fits again: a new start proves it
        (512, 40, [512, 256, 128, 64, 32, 43, 37, 40]),
        (7, 3, [7, 4, 2, 3]),
        (3, 0, [3, 2, 1]),
        (1, 0, [1]),
    ],
)
def test_sizes_that_are_tried(share: int, room: int, sizes: list[int]) -> None:
    assert search(share, room)[0] == sizes


@given(share=st.integers(1, 5000), part=st.floats(0, 1))
def test_what_is_found_fits_and_nothing_better_is_far(share: int, part: float) -> None:
    room = int(share * part)
    sizes, tried = search(share, room)
    assert len(sizes) <= 2 * share.bit_length() + 1
    if room == 0:
        assert tried.next() == 0
        return
    assert tried.settled and tried.fits is not None and tried.fits <= room
    least = -(-share // room)  # forwards, were the largest size known
    assert -(-share // tried.fits) == least or room - tried.fits <= room / NEAR


def test_without_a_known_share_all_rows_come_first() -> None:
    tried = Tried("a data set that makes its batches")
    assert tried.next() is None
    assert tried.failed(48).next() == 24
    assert tried.failed(48).failed(24).fitted(12).next() == 16


def test_a_size_that_fitted_and_does_not_any_more_is_lowered_for_good() -> None:
    tried = Tried("text", 64).failed(64).fitted(32)
    assert tried.settled
    late = tried.failed(32)
    assert late.next() == 16 and late.fitted(16).settled and late.fitted(16).next() == 16
    assert Tried("text", 64, fits=8, settled=True).failed(3).next() == 2  # a long batch, of fewer rows


def test_a_choice_that_lies_is_lowered() -> None:
    assert Tried("a model", 64, fits=32, settled=True).failed(32).fitted(16).fits == 16


def test_the_runs_own_file(tmp_path: Path) -> None:
    assert read_tries(tmp_path) == {}
    tries = {"a": Tried("a", 8, fits=4, fails=8, trying=4, settled=True), "b": Tried("b")}
    write_tries(tmp_path, tries)
    assert read_tries(tmp_path) == tries and [path.name for path in tmp_path.iterdir()] == [FILE]
    for damaged in ("", "{}", "[1]", '[{"key": 3}]', "nothing"):
        (tmp_path / FILE).write_text(damaged)
        assert read_tries(tmp_path) == {}


def test_the_cache(tmp_path: Path) -> None:
    path = cache_path({"XDG_CACHE_HOME": str(tmp_path)})
    assert path == tmp_path / "hwal" / CACHE
    assert cache_path({}) == Path.home() / ".cache" / "hwal" / CACHE
    assert cached(path, "a") == (None, None)
    assert remember(path, "a", 32) is None and remember(path, "b", 8) is None
    assert cached(path, "a") == (32, None) and cached(path, "c") == (None, None)
    assert remember(path, "a", 16) is None and cached(path, "a") == (16, None)
    assert [entry.name for entry in path.parent.iterdir()] == [CACHE]


@pytest.mark.parametrize("damaged", ["", "[]", '{"a": 0}', '{"a": "many"}', '{"a": true}'])
def test_a_damaged_cache_is_told_and_written_anew(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / CACHE
    path.write_text(damaged)
    rows, wrong = cached(path, "a")
    assert rows is None and wrong is not None and "cannot be read and is ignored" in wrong
    assert remember(path, "a", 4) is None and json.loads(path.read_text()) == {"a": 4}


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "hwal").write_text("a file in its place")
    wrong = remember(tmp_path / "hwal" / CACHE, "a", 4)
    assert wrong is not None and wrong.startswith("the micro-batch cannot be kept for other runs: ")
    assert os.listdir(tmp_path) == ["hwal"]


def test_what_is_tried_is_forgotten_when_it_failed() -> None:
    assert replace(Tried("a", 8), trying=8).failed(8).trying is None
