"""The torch examples, unchanged, on the CPU and on XLA's CPU platform. Run in XLA's environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is in the environment of ci/xla.txt")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUICK = {"train_torch.py": ("--epochs", "2"), "train_lm.py": ("--steps", "8", "--eval-every", "8")}
PLACES = ("cpu", "tpu:cpu", "tpu:cpu:4")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", sorted(QUICK))
def test_one_curve_everywhere(tmp_path: Path, name: str) -> None:
    curves = {}
    for place in PLACES:
        command = [sys.executable, "-m", "hwal", "train", "--device", place, "--out", place, EXAMPLES / name, *QUICK[name]]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HWAL_PRECISION": "fp32"}
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [json.loads(line) for line in (tmp_path / place / "metrics.jsonl").read_text().splitlines()]
        curves[place] = [line["loss"] for line in lines]
        assert any(path.is_dir() for path in (tmp_path / place / "checkpoints").iterdir()), place
    assert len(curves["cpu"]) >= 8 and curves["cpu"][-1] < 0.9 * curves["cpu"][0]
    for place in PLACES[1:]:
        assert curves[place] == pytest.approx(curves["cpu"], rel=1e-5), place
