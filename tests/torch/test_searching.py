"""What a search for the micro-batch leaves for the process that comes after it, and when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import DataLoader

from hwal.env import Settings
from hwal.micro_batch import AUTO, read_tries
from hwal_torch import oom
from hwal_torch.harness import run_world


def moments(rt: Any, out: str) -> list[tuple[str, int | None]]:
    """What the run's file says is tried, moment by moment."""
    found: list[tuple[str, int | None]] = []

    def look(moment: str) -> None:
        (tried,) = read_tries(Path(out)).values()
        found.append((moment, tried.trying))

    with rt.scope():
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = rt.prepare(model, optimizer)
    data = DataLoader([torch.ones(3)] * 16, batch_size=4)
    for _ in rt.epochs(2):
        for step, x in enumerate(rt.feed(data)):
            look("training")
            rt.backward(model(x).mean())
            rt.step(optimizer)
            if step == 2:
                for _ in rt.feed(data, train=False):
                    look("evaluation")
                look("training")
        look("script")
    for _ in rt.feed(data):
        break
    look("left")
    rt.save()
    look("saved")
    return found


@pytest.mark.slow
def test_a_size_is_tried_only_while_training_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a loader, an evaluation or an export that the kernel kills would lower it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = Settings(micro_batch=AUTO)
    (outcome,) = run_world("cpu", 1, moments, str(tmp_path), run_dir=tmp_path, settings=settings)
    assert outcome.error is None, outcome
    expected = {"training": {4}, "evaluation": {None}, "script": {None}, "left": {4}, "saved": {None}}
    assert {moment: {rows for name, rows in outcome.result if name == moment} for moment in expected} == expected


KILLED = "DataLoader worker (pid(s) 7) exited unexpectedly: DataLoader worker (pid 7) is killed by signal: Killed. "


@pytest.mark.parametrize(("text", "lowers"), [("out of memory", True), (KILLED, False)])
def test_a_worker_of_the_loader_that_is_killed_lowers_no_size(text: str, lowers: bool) -> None:
    failed: list[int] = []
    left = SimpleNamespace(unit=SimpleNamespace(rows=8), batch=None, trains=True)
    search = SimpleNamespace(failed=lambda rows: failed.append(rows) or 4)
    rt: Any = SimpleNamespace(
        search=search,
        loop=SimpleNamespace(at_work=left),
        device=torch.device("cpu"),
        rank=0,
        world_size=1,
        steps_done=3,
        parameters=dict,
        optimizers=[],
        job=SimpleNamespace(settings=Settings(micro_batch=AUTO)),
        strategy_decision=SimpleNamespace(value="single"),
    )
    told = oom.explain(rt, RuntimeError(text))
    assert told is not None and failed == [8] * lowers
    assert ("tries 4 rows" in str(told.hint)) == lowers and ("fewer workers of the loader" in str(told.hint)) != lowers
