"""Which checkpoint a run goes on from, and where it begins from the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwal.checkpoint import Checkpoints
from hwal.errors import CheckpointError
from hwal.resuming import find, source_of
from tests.stores import write


def find_in(source: Path, run_dir: Path, out: str | None = None) -> tuple[str | None, list[str]]:
    said: list[str] = []
    found = find(source, Checkpoints(run_dir / "checkpoints"), run_dir, "torch", said.append, out)
    return found and found.folder.name, said


def test_a_run_that_saved_nothing_yet_begins_from_the_start(tmp_path: Path) -> None:
    begins = [f"nothing was saved in {tmp_path} yet: begins from the start"]
    with pytest.raises(CheckpointError, match="there is no checkpoint to resume from"):
        find_in(tmp_path, tmp_path)  # any folder
    assert find_in(tmp_path, tmp_path, out=str(tmp_path)) == (None, begins)
    (tmp_path / "plan.json").touch()
    assert find_in(tmp_path, tmp_path) == (None, begins)
    with pytest.raises(CheckpointError, match="there is no checkpoint to resume from"):
        find_in(tmp_path, tmp_path / "other", out="other")  # another run's


def test_there_is_nothing_to_go_on_from_before_the_first_checkpoint(tmp_path: Path) -> None:
    run, before = tmp_path / "run", tmp_path / "before"
    run.mkdir()
    assert source_of(run, None) is source_of(run, str(run)) is source_of(run, str(before)) is None
    step = write(Checkpoints(before / "checkpoints"), 1)
    assert source_of(run, str(before)) == before and source_of(run, str(step)) == step
    write(Checkpoints(run / "checkpoints"), 1)
    assert source_of(run, str(before)) == run
    assert find_in(run, run) == ("step-00000001", [])
