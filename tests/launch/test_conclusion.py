"""What hwal says and returns when a run is over; every message as printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwal.env import PLAN
from hwal.errors import EXIT_FAILED, EXIT_OK, EXIT_PREEMPTED
from hwal.launch.conclusion import End, conclude
from hwal.launch.outcome import Exit, Failure, Outcome
from hwal.watch.beat import Doom

RUNS = Outcome(0, 100, "cpu:0", 1.0)
SAVED = Outcome(0, 100, "cpu:0", 1.0, ended=2.0, exit=0, preempted=True)
NOTHING = Outcome(
    0,
    100,
    "cpu:0",
    1.0,
    ended=2.0,
    exit=0,
    preempted=True,
    alone=True,
    lines=("hwal: SIGTERM before hwal.start(): nothing is lost",),
)
FAILED = Outcome(0, 100, "cpu:0", 1.0, ended=2.0, exit=1, error="ValueError: planted", lines=("ValueError: planted",))
KILLED = Failure((Exit(0, 100, -9, 2.0),))
GO_ON = "hwal: the last finished checkpoint is whole: go on with --resume RUN\n"
LATE = Doom("SIGTERM: the ranks did not end within 30 s: rank 0 was last seen at train.py:9, in work", "why not", None)

SAID = [
    (End(0), [], None, EXIT_OK, ""),
    (End(0, "SIGTERM"), [SAVED], None, EXIT_PREEMPTED, ""),
    (End(-9, "SIGTERM", doom=LATE), [SAVED], None, EXIT_PREEMPTED, ""),  # saved, and stuck in what comes after its script
    (End(0, "SIGTERM"), [NOTHING], None, EXIT_PREEMPTED, "hwal: SIGTERM before hwal.start(): nothing is lost\n"),
    (
        End(-15, "SIGINT", none_there=True),
        [],
        None,
        EXIT_PREEMPTED,
        "hwal: SIGINT before any rank had started: go on with --resume RUN\n",
    ),
    (End(-9, "SIGTERM", twice=True), [RUNS], None, EXIT_FAILED, "hwal: all ranks were ended\n" + GO_ON),
    (End(-9, "SIGTERM", doom=LATE), [RUNS], None, EXIT_FAILED, f"hwal: error: {LATE.what}\n  why:   why not\n" + GO_ON),
    (End(1, "SIGTERM"), [RUNS], KILLED, EXIT_FAILED, "hwal: SIGTERM: rank 0 ended before it could save\n" + GO_ON),
    (
        End(1),
        [FAILED],
        Failure((Exit(0, 100, 1, 2.0),)),
        EXIT_FAILED,
        "hwal: rank 0 of 2 on cpu:0 failed first: ValueError: planted\n  ValueError: planted\n" + GO_ON,
    ),
    (
        End(-9, failure=KILLED),
        [],
        None,
        EXIT_FAILED,
        "hwal: rank 0 of 2 was killed by SIGKILL: the kernel's out-of-memory killer does this (see dmesg), or someone did\n"
        + GO_ON,
    ),
    (End(1), [], Failure(agent="the machines did not meet"), EXIT_FAILED, "hwal: error: the machines did not meet\n" + GO_ON),
    (End(3), [], None, EXIT_FAILED, "hwal: torchrun ended with exit code 3 and left no word why\n" + GO_ON),
]


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize(("end", "outcomes", "failure", "code", "text"), SAID)
def test_the_end_as_printed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    end: End,
    outcomes: list[Outcome],
    failure: Failure | None,
    code: int,
    text: str,
    saved: bool,
) -> None:
    """75 only where there is a checkpoint to go on from."""
    state, run = tmp_path / "state", tmp_path / "run"
    state.mkdir()
    if saved:
        (run / "checkpoints" / "step-00000004").mkdir(parents=True)
    for outcome in outcomes:
        outcome.write(state)
    if failure is not None:
        failure.write(state)
    got = conclude(end, 2, {PLAN: "{}"}, state, run / "logs", None)
    assert got == (EXIT_FAILED if code == EXIT_PREEMPTED and not saved else code)
    expected = text.replace("RUN", str(run))
    if not saved:
        expected = text.replace(GO_ON, "").replace(
            "go on with --resume RUN", "nothing is lost, and there is no checkpoint to go on from"
        )
    assert capsys.readouterr().err == expected


def test_a_run_of_plain_python_goes_on_by_a_variable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run" / "checkpoints" / "step-00000004").mkdir(parents=True)
    for end, told in (
        (End(-9, "SIGTERM", twice=True), "hwal: the last finished checkpoint is whole: go on with HWAL_RESUME={}\n"),
        (End(-15, "SIGINT", none_there=True), "hwal: SIGINT before any rank had started: go on with HWAL_RESUME={}\n"),
    ):
        conclude(end, 1, {}, tmp_path, tmp_path / "run" / "logs", None)
        assert capsys.readouterr().err.endswith(told.format(tmp_path / "run"))
