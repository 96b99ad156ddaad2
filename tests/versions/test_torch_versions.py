"""P3 between versions of torch: a checkpoint of the oldest that hwal supports goes on in the newest, and back.

The oldest lives in an environment of its own, which ci/check makes of ci/xla.txt and names in XLA_PYTHON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("script.py")
SAVED_AT = 6  # in the midst of the second epoch
OLD = os.environ.get("XLA_PYTHON", "")
PYTHONS = {"2.8.0": OLD, version("torch").partition("+")[0]: sys.executable}
OLDEST, NEWEST = PYTHONS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not OLD, reason="XLA_PYTHON is not set: XLA_PYTHON=$(python3.11 ci/environment.py ci/xla.txt)"),
]


def train(python: str, out: Path, *flags: str, save_at: int = 0) -> tuple[list[float], str]:
    """The losses of metrics.jsonl, and what the run said."""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'backends'}", "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "hwal", "train", "--device", "cpu", "--precision", "fp32", "--out", str(out), *flags]
    done = subprocess.run(
        [*command, str(SCRIPT), "--save-at", str(save_at)],
        env={**environ, "HWAL_PROGRESS": "lines"}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines], done.stdout + done.stderr


@pytest.mark.parametrize(("before", "after"), [(OLDEST, NEWEST), (NEWEST, OLDEST)])
@pytest.mark.parametrize(("saved", "resumed"), [("single", "single"), ("fsdp:full", "ddp"), ("ddp", "fsdp:full")])
def test_a_run_goes_on_in_another_version(tmp_path: Path, before: str, after: str, saved: str, resumed: str) -> None:
    def world(strategy: str) -> tuple[str, ...]:
        return ("-n", "1" if strategy == "single" else "2", "--strategy", strategy)

    losses, _ = train(PYTHONS[before], tmp_path / "before", *world(saved), save_at=SAVED_AT)
    rest, said = train(PYTHONS[after], tmp_path / "after", "--resume", str(tmp_path / "before"), *world(resumed))
    assert len(losses) == 12 and len(rest) == 12 - SAVED_AT
    assert rest[0] == pytest.approx(losses[SAVED_AT], rel=1e-6)
    assert rest == pytest.approx(losses[SAVED_AT:], rel=1e-5)
    assert f"torch {before}" in said and after in said
