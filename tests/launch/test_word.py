"""What a rank's watchdog leaves for the launcher."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hwal.env import STATE_DIR
from hwal.launch.outcome import Failure, Outcome, read_failure, read_outcomes
from hwal.launch.word import drop_beat, last_word, leave_beat, nothing_lost, read_beats
from hwal.watch.beat import Beat
from hwal.watch.pulse import TRAINING

BEAT = Beat(1, 101, "here", 5, TRAINING, 3, "train.py:9, in work", limit=60.0, silence=65.0)


def test_beats_follow_one_another_and_are_gone_when_the_watch_is_over(tmp_path: Path) -> None:
    environ = {STATE_DIR: str(tmp_path)}
    leave_beat(environ, BEAT)
    ((first, when),) = read_beats(tmp_path).values()
    assert first == BEAT
    os.utime(tmp_path / "beat-1.json", ns=(when - 10, when - 10))  # so that the clock of a file system may be coarse
    leave_beat(environ, replace(BEAT, step=4))
    after = read_beats(tmp_path)
    assert list(after) == [101] and after[101][0].step == 4 and after[101][1] != when - 10
    drop_beat(environ, 1)
    drop_beat(environ, 1)
    assert read_beats(tmp_path) == {}


@pytest.mark.parametrize("kept", range(0, 200, 7))
def test_half_a_word_is_none(tmp_path: Path, kept: int) -> None:
    """Wherever a full disk cuts it, within a letter too."""
    line = "zürich_\udce4.py:9, in 数える" * 9  # a path may hold bytes that are no text
    leave_beat({STATE_DIR: str(tmp_path)}, replace(BEAT, line=line))
    ((beat, _),) = read_beats(tmp_path).values()
    assert beat.line == line
    Outcome(0, 100, "cpu:0", 1.0, error=line).write(tmp_path)
    assert read_outcomes(tmp_path)[0].error == line
    Failure(agent=line).write(tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:kept])
    assert (read_beats(tmp_path), read_outcomes(tmp_path), read_failure(tmp_path)) == ({}, {}, None)


def test_bytes_that_are_no_text_are_no_word(tmp_path: Path) -> None:
    for name in ("beat-0.json", "rank-0.json", "failure.json"):
        (tmp_path / name).write_bytes('{"line": "ü'.encode()[:-1])
    assert (read_beats(tmp_path), read_outcomes(tmp_path), read_failure(tmp_path)) == ({}, {}, None)


def test_without_a_launcher_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    leave_beat({}, BEAT)
    drop_beat({}, 1)
    assert not last_word({}, 1, "stuck", ["hwal: error: stuck"], False)
    assert not nothing_lost({}, 1, "hwal: nothing", 0)
    assert list(tmp_path.iterdir()) == []


def test_a_last_word_does_not_take_the_place_of_the_scripts_own(tmp_path: Path) -> None:
    environ = {STATE_DIR: str(tmp_path)}
    Outcome(0, 100, "cpu:0", 1.0).write(tmp_path)
    assert nothing_lost(environ, 0, "hwal: SIGTERM: nothing is lost", 0)
    left = read_outcomes(tmp_path)[0]
    assert (left.preempted, left.alone, left.exit, left.error) == (True, True, 0, None)
    assert left.lines == ("hwal: SIGTERM: nothing is lost",)
    assert last_word(environ, 0, "stuck", ["hwal: error: stuck"], False)
    assert read_outcomes(tmp_path)[0] == left
