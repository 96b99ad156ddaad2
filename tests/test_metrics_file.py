"""metrics.jsonl when it cannot be written: told once, tried again, counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwal import metrics_file
from hwal.metrics_file import MetricsFile


def test_lines_wait_until_they_can_be_written(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "run"
    file = MetricsFile(folder / "metrics.jsonl", said.append)
    for line in ("one", "two"):
        file.add([line])
    assert said == ["metrics.jsonl cannot be written (No such file or directory); training goes on, and its lines wait"]
    folder.mkdir()
    file.add(["three", "four"])
    file.close()
    assert (folder / "metrics.jsonl").read_text() == "one\ntwo\nthree\nfour\n"
    assert said[1:] == ["metrics.jsonl is written again"]


def test_a_file_that_was_removed_is_made_again(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, said.append)
    file.add(["one"])
    path.unlink()
    file.add(["two"])
    file.close()
    assert (path.read_text(), said) == ("two\n", [])


def test_a_part_that_was_written_is_not_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    real, room = metrics_file.os.write, [3, 0]

    def write(descriptor: int, data: bytes) -> int:
        if room and not room[0]:
            room.pop(0)
            raise OSError(28, "No space left on device")
        return real(descriptor, data[: room.pop(0)] if room else data)

    monkeypatch.setattr(metrics_file.os, "write", write)
    file = MetricsFile(tmp_path / "metrics.jsonl", said.append)
    file.add(["one", "two"])
    file.add([])
    file.close()
    assert (tmp_path / "metrics.jsonl").read_text() == "one\ntwo\n"
    assert said == [
        "metrics.jsonl cannot be written (No space left on device); training goes on, and its lines wait",
        "metrics.jsonl is written again",
    ]


def test_what_memory_has_no_room_for_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_file, "MOST", 4)
    said: list[str] = []
    file = MetricsFile(tmp_path / "run" / "metrics.jsonl", said.append)
    for line in ("one", "two", "three"):
        file.add([line])
    file.close()
    assert said[1:] == ["metrics.jsonl lacks 3 lines (No such file or directory)"]
