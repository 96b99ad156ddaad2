"""How ranks agree on what a run that is asked to end has saved already. Each rank is a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from hwal.errors import OutputError
from hwal.watch.pulse import SAVING, Pulse
from hwal_torch.stopping import Ending

WAIT = 20.0  # seconds: a rank that waits longer for the others has come to another call than they


class Channel:
    """hwal_torch.channel's two agreements, between threads."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._words: list[Any] = []

    def _exchange(self, word: Any) -> list[Any]:
        self._words.append(word)
        self._barrier.wait(WAIT)
        words = list(self._words)
        if self._barrier.wait(WAIT) == 0:
            self._words.clear()
        self._barrier.wait(WAIT)
        return words

    def all(self, word: bool) -> bool:
        return all(self._exchange(word))

    def ask(self, question: Callable[[], Any]) -> Any:
        return self._exchange(question())[0]


class Saving:
    """hwal.background's end of a checkpoint in the making; it notes in which phase it was waited for."""

    def __init__(self, pulse: Pulse, error: Exception | None) -> None:
        self.phase = ""
        self._pulse = pulse
        self._error = error

    def wait(self) -> None:
        self.phase = self._pulse.phase
        if self._error is not None:
            raise self._error


def rank(channel: Channel, folder: Path, error: Exception | None, signal: str | None) -> SimpleNamespace:
    pulse = Pulse()
    return SimpleNamespace(
        pulse=pulse,
        channel=channel,
        saving=Saving(pulse, error),
        stop_request=SimpleNamespace(name=signal),
        say=lambda text: None,
        checkpoints=SimpleNamespace(path=lambda step: folder),
        steps_done=4,
        models=[],
        schedulers=[],
        progress=SimpleNamespace(position=lambda: 4),
    )


def ends(tmp_path: Path, errors: list[Exception | None], signals: list[str | None]) -> list[Any]:
    """What each rank has of it: the checkpoint that is there, None where another is to be saved, or the error."""
    channel = Channel(len(errors))
    ranks = [rank(channel, tmp_path, error, signal) for error, signal in zip(errors, signals, strict=True)]

    def one(rt: Any) -> Any:
        ending = Ending(rt)
        ending.has_saved(tmp_path)
        try:
            return ending.saved()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        told = list(pool.map(one, ranks))
    assert [rt.saving.phase for rt in ranks] == [SAVING] * len(ranks)
    return told


def test_a_checkpoint_of_this_moment_is_taken_once_it_is_whole(tmp_path: Path) -> None:
    assert ends(tmp_path, [None, None], ["SIGTERM", None]) == [tmp_path, tmp_path]


def test_one_that_failed_on_any_rank_is_saved_once_more(tmp_path: Path) -> None:
    full = OutputError("the disk is full")
    for errors in ([full, full], [None, full], [full, None]):
        assert ends(tmp_path, errors, [None, "SIGTERM"]) == [None, None]


def test_where_nobody_asked_the_failure_is_why_the_run_ends(tmp_path: Path) -> None:
    full = OutputError("the disk is full")
    first, second = ends(tmp_path, [None, full], [None, None])
    assert isinstance(first, OutputError) and first.why == "another rank says so" and second is full


def test_a_defect_is_no_full_disk(tmp_path: Path) -> None:
    defect = RuntimeError("planted")
    assert ends(tmp_path, [defect, defect], ["SIGTERM", "SIGTERM"]) == [defect, defect]
