"""A disk that is full: what the command line and the launcher make of it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hwal import aside
from hwal.cli import main
from hwal.launch.outcome import Outcome, read_outcomes
from hwal.launch.terminal import Log

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="only Linux has /dev/full")


COMMANDS = ("--help", "--version", "devices", "devices --json", "train --help", "train --dry-run s.py")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_that_cannot_be_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").write_text("import torch")
    with FULL.open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(command.split()) == 1
    assert capsys.readouterr().err.splitlines()[-3:] == [
        "hwal: error: the answer cannot be written: No space left on device",
        "  where: stdout",
        "  try:   free space, or another file behind >",
    ]


def test_words_that_cannot_be_written_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").write_text("import torch")
    with FULL.open("wb", buffering=0) as raw:
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, write_through=True))
        assert main(["train", "--dry-run", "s.py"]) == 0
    assert '"launch"' in capsys.readouterr().out


def test_a_log_leaves_out_what_there_is_no_room_for() -> None:
    log = io.TextIOWrapper(io.BufferedWriter(Log(os.open(FULL, os.O_WRONLY), "w")), line_buffering=True)
    print("a line", file=log, flush=True)  # raises nothing
    log.close()
    assert log.closed


def test_the_last_word_takes_the_place_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full has no room for another file; what is written over one that is there needs none."""
    first = Outcome(0, 12, "cpu:0", 1.0, lines=("a longer one than the last",))
    with pytest.raises(FileNotFoundError):
        first.write(tmp_path / "missing")
    first.write(tmp_path)

    def full(self: Path, *args: object, **options: object) -> None:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    last = Outcome(0, 12, "cpu:0", 1.0, 2.0, exit=1)
    last.write(tmp_path)
    assert read_outcomes(tmp_path) == {0: last}
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.json"]


def test_a_small_file_stays_where_the_new_one_fails(tmp_path: Path) -> None:
    """In a process of its own, which may write files of eight bytes."""
    path = tmp_path / "plan.json"
    path.write_text("before")
    code = (
        "import resource, sys; from pathlib import Path; from hwal.aside import write_file\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))\n"
        "try: write_file(Path(sys.argv[1]), 'x' * 9)\n"
        "except OSError as error: print(error.strerror)"
    )
    command = [sys.executable, "-B", "-c", code, str(path)]
    env = {**os.environ, "PYTHONPATH": str(Path(aside.__file__).parent.parent)}
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "File too large\n"
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
