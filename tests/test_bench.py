"""The benches still run: each explains itself, and those of a promise do their smallest job. Nothing is timed here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHES = sorted(Path(__file__).with_name("bench").glob("*.py"))
PROGRAMS = [path.stem for path in BENCHES if "def main()" in path.read_text(encoding="utf-8")]
SMALLEST = {
    "curve": ("--steps 2 --worlds 2 --accumulation 2 --contestants", ["hwal ddp", "accelerate, tokens"]),
    "gpus": ("--rounds 1", []),
    "hangs": ("--runs 1 --kinds", ["stuck", "killed"]),
    "kill": ("--kills 1", []),
    "loading": ("--blocks 2 --width 64", []),
    "memory": ("--blocks 2 --width 64 --worlds 2", []),
    "micro_batch": ("--rows 64 --limits none", []),
    "order": ("--rounds 1", []),
    "pairs": ("--worlds 1", []),
    "saving": ("--blocks 2 --width 64 --rounds 1", []),
    "watching": ("--rounds 1 --steps 20", []),
}

pytestmark = pytest.mark.slow


def run(name: str, *argv: str) -> str:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("bench") / f"{name}.py"), *argv]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bench_explains_itself(name: str) -> None:
    assert f"python tests/bench/{name}.py" in run(name, "--help")


@pytest.mark.parametrize("name", SMALLEST)
def test_a_bench_does_its_smallest_job(name: str) -> None:
    flags, names = SMALLEST[name]
    out = run(name, *flags.split(), *names)
    assert len(out.splitlines()) >= 3, out
    if name == "pairs":
        assert "over the promise" not in out, out
    if name == "curve":
        (hwal,) = [line for line in out.splitlines() if line.startswith("hwal ddp")]
        assert hwal.endswith("2 of 2"), out
