"""PyTorch/XLA on its CPU platform, in the environment of ci/xla.txt: one curve everywhere, shards, graphs, reads, overhead.

    python tests/bench/tpu.py [examples shards graphs overhead …]

examples: losses of both torch examples over 20 steps in fp32 on cpu, tpu:cpu and tpu:cpu:4, side by side.
shards: bytes of parameters and optimizer state on one device, under FSDP on 4 and on 1.
graphs: what XLA compiles over 50 steps of lines of 1 to 120 tokens, as they are and padded to multiples of 64; and in how
many steps the host read from the device.
overhead: wall time and the main thread's own CPU time of a step, hwal beside a loop by hand over torch_xla's public calls, on
the same graphs, round by round in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

from hwal.env import Settings

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
EXAMPLES = {"train_torch.py": ("--epochs", "2"), "train_lm.py": ("--steps", "20")}
PLACES = ("cpu", "tpu:cpu", "tpu:cpu:4")
STEPS = 100  # a round


def examples(scratch: Path) -> None:
    for name, argv in EXAMPLES.items():
        curves = []
        for place in PLACES:
            out = scratch / f"{name}-{place}"
            command = [sys.executable, "-m", "hwal", "train", "--device", place, "--precision", "fp32", "--out", out]
            environ = {**os.environ, "HWAL_PROGRESS": "off"}
            subprocess.run(
                [*command, ROOT / "examples" / name, *argv], env=environ, cwd=scratch, check=True, capture_output=True
            )
            lines = (out / "metrics.jsonl").read_text().splitlines()[:20]
            curves.append([json.loads(line)["loss"] for line in lines])
        print(f"{name:>16}", *(f"{place:>12}" for place in PLACES))
        for step, losses in enumerate(zip(*curves, strict=True), 1):
            print(f"{step:16}", *(f"{loss:12.7f}" for loss in losses))
        worst = max(abs(a - b) / b for curve in curves[1:] for a, b in zip(curve, curves[0], strict=True))
        print(f"largest relative difference to cpu: {worst:.1e}\n", flush=True)


def shards(scratch: Path) -> None:
    from tests.tpu.jobs import shares

    for device in ("tpu:cpu", "tpu:cpu:4"):
        told = world(device, shares, folder=scratch / device)
        print(f"{device}: bytes on the first device: parameters {told['parameters']}, optimizer {told['state']}", flush=True)


def graphs(scratch: Path) -> None:
    from tests.tpu.jobs import lines

    for name, pad in (("as they are", None), ("pad={0: 0, 1: -100}", {0: 0, 1: -100})):
        told = world("tpu:cpu", lines, pad, 50, folder=scratch / name)
        print(f"{name}: {told['graphs']} graphs in 50 steps; the host read in {len(told['read in steps'])} steps", flush=True)


def overhead(scratch: Path) -> None:
    rounds = world("tpu:cpu", beside, folder=scratch / "overhead")
    (wall, thread), (by_hand_wall, by_hand_thread) = (
        [median(times) for times in zip(*rounds[who], strict=True)] for who in ("hwal", "by hand")
    )
    print(f"by hand: {by_hand_wall * 1e6:.0f} µs a step, {by_hand_thread * 1e6:.0f} µs of the main thread")
    print(
        f"hwal:    {(wall - by_hand_wall) * 1e6:+.0f} µs ({wall / by_hand_wall - 1:+.1%}), "
        f"main thread {(thread - by_hand_thread) * 1e6:+.0f} µs",
        flush=True,
    )


def beside(rt: Any) -> dict[str, list[tuple[float, float]]]:
    """Seconds a step, (wall, the main thread's own), of each contestant in each round."""
    import torch
    import torch_xla
    from torch.utils.data import DataLoader, TensorDataset

    x = torch.randn(STEPS * 64, 64, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=64, shuffle=True)

    def build() -> Any:
        torch.manual_seed(0)
        layers = (layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU()))
        model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4)

    model, optimizer = rt.prepare(*build())
    raw, _ = build()
    raw = raw.to(rt.device)
    raw_optimizer = torch.optim.AdamW(raw.parameters(), lr=1e-4)

    def with_hwal() -> None:
        for a, b in rt.feed(loader):
            rt.backward(torch.nn.functional.mse_loss(model(a), b))
            rt.step(optimizer)

    def by_hand() -> None:
        for a, b in loader:
            torch.nn.functional.mse_loss(raw(a.to(rt.device)), b.to(rt.device)).backward()
            raw_optimizer.step()
            raw_optimizer.zero_grad()
            torch_xla.sync()

    contestants: dict[str, Callable[[], None]] = {"hwal": with_hwal, "by hand": by_hand}
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for number in range(12):
        for name, one_round in contestants.items():
            torch_xla.sync(wait=True)
            wall, thread = perf_counter(), thread_time()
            one_round()
            thread = thread_time() - thread
            torch_xla.sync(wait=True)
            if number > 1:  # the first ones compile
                rounds[name].append(((perf_counter() - wall) / STEPS, thread / STEPS))
    return rounds


def world(device: str, task: Any, *args: Any, folder: Path) -> Any:
    from hwal_torch.harness import run_world

    settings = Settings(precision="fp32")
    (outcome,) = run_world(device, 1, task, *args, run_dir=folder, settings=settings, limit=900)
    assert outcome.error is None, outcome.error
    return outcome.result


PARTS = {part.__name__: part for part in (examples, shards, graphs, overhead)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=list(PARTS))
    for name in parser.parse_args().parts:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](Path(folder))
