"""The examples run, unchanged, every way a script can be started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
QUICK = {"train_torch.py": ("--epochs", "2"), "train_lm.py": ("--steps", "12", "--eval-every", "6")}
WAYS = {
    "python": ("{python}", "{script}"),
    "hwal": ("{python}", "-m", "hwal", "train", "--device", "cpu", "{script}"),
    "hwal -n 2": ("{python}", "-m", "hwal", "train", "--device", "cpu", "-n", "2", "{script}"),
    "fsdp": ("{python}", "-m", "hwal", "train", "--device", "cpu", "-n", "2", "--strategy", "fsdp:full", "{script}"),
    "torchrun": ("{python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "{script}"),
}

pytestmark = pytest.mark.slow


def run(folder: Path, way: str, name: str, *argv: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that the example left."""
    command = [part.format(python=sys.executable, script=EXAMPLES / name) for part in WAYS[way]]
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "HWAL_DEVICE": "cpu",
        "HWAL_PRECISION": "fp32",
        "HWAL_OUT": str(folder / way),
    }
    done = subprocess.run([*command, *argv], cwd=folder, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in (folder / way / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("name", "left_out"), [("train_torch.py", "fsdp"), ("train_lm.py", "torchrun")])
def test_every_way_of_starting_gives_the_same_curve(tmp_path: Path, name: str, left_out: str) -> None:
    curves = {way: run(tmp_path, way, name, *QUICK[name]) for way in WAYS if way != left_out}
    alone = [line["loss"] for line in curves["python"]]
    assert alone[-1] < 0.8 * alone[0]
    for way, lines in curves.items():
        assert [line["step"] for line in lines] == list(range(1, len(alone) + 1)), way
        assert [line["loss"] for line in lines] == pytest.approx(alone, rel=1e-5), way
        assert any(path.is_dir() for path in (tmp_path / way / "checkpoints").iterdir()), way


def test_the_vision_model_learns_digits(tmp_path: Path) -> None:
    assert run(tmp_path, "python", "train_torch.py")[-1]["accuracy"] >= 0.95


def test_the_language_model_learns_from_a_file(tmp_path: Path) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(f"line {n} says that {n} and one is {n + 1}" for n in range(600)))
    lines = run(tmp_path, "python", "train_lm.py", "--data", str(text), "--steps", "40", "--eval-every", "20")
    assert lines[-1]["eval_loss"] < 2.0
