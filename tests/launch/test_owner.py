"""What a watchdog says and does to its rank."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hwal.env import PLAN, STATE_DIR, Settings
from hwal.launch.outcome import Outcome, read_outcomes
from hwal.launch.owner import RankOwner
from hwal.values import World
from hwal.watch.beat import Doom


@pytest.mark.parametrize("rank", [0, 1])
def test_what_it_says_is_said_on_every_rank(capsys: pytest.CaptureFixture[str], rank: int) -> None:
    """That one has made no progress, which is told once; rt.say is rank 0's alone."""
    said: list[str] = []
    rt: Any = SimpleNamespace(is_main=rank == 0, say=said.append)
    RankOwner(rt, lambda: False).tell("it goes on")
    assert (said, capsys.readouterr().err) == ((["it goes on"], "") if rank == 0 else ([], "it goes on\n"))


FOUND = (SimpleNamespace(name="step-00000004"), None)


@pytest.mark.parametrize("launched", [True, False])
@pytest.mark.parametrize(("found", "resume"), [(FOUND, None), (None, None), (None, "runs/a")])
def test_what_is_said_of_a_restarted_run_that_hangs_before_its_first_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    launched: bool,
    found: Any,
    resume: str | None,
) -> None:
    """Under hwal's launcher too: the run may have a checkpoint from before."""
    monkeypatch.delenv(PLAN, raising=False)
    monkeypatch.delenv(STATE_DIR, raising=False)
    if launched:
        monkeypatch.setenv(STATE_DIR, str(tmp_path))
        Outcome(0, 100, "cpu:0", 1.0).write(tmp_path)
    rt: Any = SimpleNamespace(
        rank=0,
        is_main=True,
        run_dir=Path("runs/a"),
        checkpoints=SimpleNamespace(found=lambda: found),
        reporter=SimpleNamespace(close=lambda failed: None),
        job=SimpleNamespace(settings=Settings(resume=resume), world=World()),
    )
    code = RankOwner(rt, lambda: False)._nothing_lost(Doom("SIGTERM: the run has been stuck", asked="SIGTERM"))
    there = "go on with HWAL_RESUME=runs/a" if found else "nothing is lost, and there is no checkpoint to go on from"
    said = f"hwal: SIGTERM: the run has been stuck before a step was done: {there}"
    assert code == (0 if launched else 75 if found else 1)
    assert (read_outcomes(tmp_path)[0].lines == (said,)) if launched else capsys.readouterr().err == f"{said}\n"
