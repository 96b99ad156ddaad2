"""The Keras examples and the recipe run, unchanged, on one device and on several logical ones, with one curve."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwal_keras import recipe
from tests.keras import jobs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.slow


def run(folder: Path, name: str, *argv: str) -> tuple[str, list[dict[str, Any]]]:
    """What `hwal train …` printed, and the lines of metrics.jsonl that it left."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HWAL_OUT": str(folder / name), "HWAL_PROGRESS": "off"}
    command = [sys.executable, "-m", "hwal", "train", "--device", "cpu", "--precision", "fp32", *argv]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "oneDNN" not in done.stderr and "absl::InitializeLog" not in done.stderr
    return done.stdout, [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["train_keras.py", "custom_loop_keras.py"])
def test_an_example_has_one_curve_on_one_device_and_on_several(tmp_path: Path, name: str) -> None:
    script = str(EXAMPLES / name)
    _, alone = run(tmp_path, "1", script, "--epochs", "1")
    assert alone[-1]["loss"] < 0.8 * alone[0]["loss"] and [line["samples"] for line in alone[-2:]] == [64, 28]
    _, both = run(tmp_path, "2", "--virtual-ranks", "2", script, "--epochs", "1")
    here, there = ([line["loss"] for line in lines] for lines in (alone, both))
    # What one device rounds otherwise than two, and XLA than no XLA, Adam's division by its small averages makes more of.
    assert there[:6] == pytest.approx(here[:6], rel=1e-5) and there == pytest.approx(here, rel=2e-2)


def test_without_a_script_a_language_model_is_trained(tmp_path: Path) -> None:
    said, lines = run(tmp_path, "run", "--framework", "keras", "--seq-len", "32", "--eval-every", "6", "--steps", "8")
    assert [line["step"] for line in lines] == list(range(1, 9)) and "val_loss" in lines[-1]
    assert lines[-1]["loss"] < lines[0]["loss"] and "held out" in said
    assert {"model.keras", "loss.png", "plan.json"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_it_ends_and_saves_at_the_steps_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the host calls for several steps at once too, as on a TPU."""
    with jobs.start(tmp_path, keep="all") as rt:
        model = jobs.compiled(rt, steps_per_execution=4)
        model.fit(rt.feed(jobs.dataset().repeat()), epochs=2, steps_per_epoch=8, callbacks=[recipe.Steps(rt, 13, 5)])
        assert rt.steps_done == 13 and model.steps_per_execution == 4
    saved = sorted(int(path.name.partition("-")[2]) for path in (tmp_path / "checkpoints").iterdir())
    assert saved == [5, 8, 10, 13] and "retracing" not in caplog.text


def test_the_language_model_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command that it printed, in this process, and one block deep: XLA takes seconds for each. The text has fewer
    windows than a batch."""
    monkeypatch.setitem(recipe.SIZES, "tiny", replace(recipe.SIZES["tiny"], width=32, blocks=1))
    for name, value in (("HWAL_DEVICE", "cpu"), ("HWAL_PRECISION", "fp32"), ("HWAL_OUT", str(tmp_path / "run"))):
        monkeypatch.setenv(name, value)
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 5)
    flags = ["--seq-len", "16", "--eval-every", "3", "--data", str(tmp_path / "text.txt")]
    recipe.main([*flags, "--steps", "3"])
    command = shlex.split(next(line for line in capsys.readouterr().out.splitlines() if line.startswith("go on"))[10:])
    assert command[:6] == ["hwal", "train", "--framework", "keras", "--resume", str(tmp_path / "run")]
    monkeypatch.setenv("HWAL_RESUME", command[5])
    recipe.main(command[6:])
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert "step 6/6" in capsys.readouterr().err
    assert [line["step"] for line in lines] == list(range(1, 7)) and "val_loss" in lines[-1]
