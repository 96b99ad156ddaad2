"""Starts the contestants of curve.py as a user would, and reads what their ranks noted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
GLOBAL_BATCH = 48  # job.GLOBAL_BATCH; job imports torch, which this process does without


@dataclass(frozen=True)
class Curve:
    """A run: for each global step the loss that the script logs, the loss on held-out lines, how often each sample was seen.

    `seconds` is hwal's time of each step; empty for others. `weights` are the digests of all ranks' weights, where noted.
    """

    losses: tuple[float, ...]
    held_out: tuple[float, ...]
    samples: tuple[Counter[int], ...]
    seconds: tuple[float, ...] = ()
    weights: tuple[str, ...] = ()


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "backends")])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HWAL_PROGRESS": "off", "HF_HUB_OFFLINE": "1"}


def started(command: list[str], out: Path) -> None:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    if not (out / "rank-0.json").exists():
        raise SystemExit(f"{' '.join(command)} left no notes")


def hwal(out: Path, world: int, script: list[str], *flags: str) -> Curve:
    """A run of hwal_script.py: `script` are its arguments, `flags` those of `hwal train`."""
    run = ["-m", "hwal", "train", "--device", "cpu", "--precision", "fp32", "-n", str(world), "--out", str(out / "run"), *flags]
    started([sys.executable, *run, str(HERE / "hwal_script.py"), "--out", str(out), *script], out)
    lines = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses, seconds = ([line[name] for line in lines] for name in ("loss", "seconds"))
    return read(out, world, tuple(losses), tuple(seconds))


def peer(name: str, out: Path, world: int, script: list[str]) -> Curve:
    """A run of NAME_script.py: plain python for one process, torchrun for several."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)] if world > 1 else []
    started([sys.executable, *launcher, str(HERE / f"{name}_script.py"), "--out", str(out), *script], out)
    return read(out, world)


def read(out: Path, world: int, losses: tuple[float, ...] = (), seconds: tuple[float, ...] = ()) -> Curve:
    notes = [json.loads((out / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(world)]
    ranks = [rank["steps"] for rank in notes]
    steps = range(len(ranks[0]))
    return Curve(
        losses or tuple(ranks[0][step]["loss"] for step in steps),
        tuple(ranks[0][step]["held_out"] for step in steps if ranks[0][step]["held_out"] is not None),
        tuple(Counter(i for rank in ranks for i in rank[step]["ids"]) for step in steps),
        seconds,
        tuple(rank["weights"] for rank in notes),
    )


def largest_difference(curve: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The largest relative difference of two curves of the same length."""
    return max(abs(a - b) / abs(b) for a, b in zip(curve, other, strict=True))
