"""bf16 against fp32 on this CPU: `hwal train` without a script, once per precision in turn.

    python tests/bench/precision.py [--rounds N] [--steps N] [--model tiny]

Prints, for each round, the median seconds of a step and the last loss of both, and their ratio. The goal is 1.6 where the
CPU has AMX or AVX512-BF16, with final losses within 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parents[2]


def train(precision: str, steps: int, model: str, folder: Path) -> tuple[float, float]:
    """(median seconds of a step, mean loss of the last tenth)."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "backends")]), "HWAL_PROGRESS": "off"}
    command = [sys.executable, "-m", "hwal", "train", "--device", "auto", "--precision", precision]
    command += ["--model", model, "--steps", str(steps), "--out", str(folder)]
    subprocess.run(command, env=environ, capture_output=True, check=True)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return median(line["seconds"] for line in lines), mean(line["loss"] for line in lines[-max(1, steps // 10) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--model", default="tiny")
    args = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(args.rounds):
            fp32, fp32_loss = train("fp32", args.steps, args.model, Path(scratch) / f"fp32-{number}")
            auto, auto_loss = train("auto", args.steps, args.model, Path(scratch) / f"auto-{number}")
            ratios.append(fp32 / auto)
            plan = json.loads((Path(scratch) / f"auto-{number}" / "plan.json").read_text(encoding="utf-8"))
            chosen = plan["precision"]
            print(
                f"fp32 {fp32 * 1e3:.1f} ms, loss {fp32_loss:.4f}; auto = {chosen['value']} ({chosen['why']}) "
                f"{auto * 1e3:.1f} ms, loss {auto_loss:.4f} ({abs(auto_loss / fp32_loss - 1):.2%} off); ratio {ratios[-1]:.2f}"
            )
    print(f"median ratio {median(ratios):.2f}")


if __name__ == "__main__":
    main()
