"""SIGKILL at random moments of saving: one run, killed and resumed again and again, never loses a checkpoint that was whole.

    python tests/bench/kill.py [--kills N] [--processes N] [--strategy S] [--seed N]

The run saves after every step without waiting, so that one save or another is always in flight. All of its processes are killed
at once, at a random moment after the first save of each life. Then the newest good checkpoint must be at least the last that
had been whole (a save waits for the one before, so the script knows), and the next life goes on from it. In the end the
losses of the whole run must be those of one that nobody disturbed: to the bit in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 0.4  # seconds from the first save of a life to its end
PATIENCE = 120.0  # seconds for a life to begin
ROWS = 8


def live(steps: int) -> None:
    """The script: trains and saves; appends its process numbers to `pids`, and to `whole` each step that is on disk."""
    import torch
    from stack import Stack
    from torch.utils.data import DataLoader, TensorDataset

    import hwal

    torch.use_deterministic_algorithms(True)
    with hwal.start() as rt:
        with (rt.run_dir / "pids").open("a", encoding="ascii") as pids:
            print(os.getpid(), file=pids)
        with rt.scope():
            model = Stack(4, 256)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        rt.prepare(model, optimizer)
        x = torch.randn(ROWS * 9 + 3, 256, generator=torch.Generator().manual_seed(1))
        before = None
        with (rt.run_dir / "whole").open("a", encoding="ascii", buffering=1) as whole:
            for _ in rt.epochs(steps=steps):
                for (rows,) in rt.feed(DataLoader(TensorDataset(x), batch_size=ROWS, shuffle=True)):
                    rt.backward(model(rows).pow(2).mean())
                    if rt.step(optimizer):
                        rt.save()
                        if rt.is_main and before is not None:
                            print(before, file=whole)
                        before = rt.steps_done


class Run:
    """A run's folder, and how to start it."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        self.folder = folder
        self.flags = flags

    def start(self, steps: int) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(ROOT), str(ROOT / "backends")])
        environ = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HWAL_PROGRESS": "off"}
        command = [sys.executable, "-m", "hwal", "train", "--device", "cpu", "--precision", "fp32", "--keep", "last:2"]
        command += [*self.flags, "--out", str(self.folder), "--resume", "--", __file__, "--live", str(steps)]
        if not self.folder.exists():
            command.remove("--resume")
        log = (self.folder.parent / "log").open("wb")
        return subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT)

    def lines(self, name: str) -> list[int]:
        path = self.folder / name
        return [int(line) for line in path.read_text(encoding="ascii").split()] if path.exists() else []

    def losses(self) -> dict[int, float]:
        """By step; a kill may take lines with it that were not written yet."""
        lines = (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return {line["step"]: line["loss"] for line in map(json.loads, lines)}

    def newest(self) -> int:
        """The step of the newest checkpoint whose checksums are right; looked at as --resume does."""
        from hwal.checkpoint import Checkpoints

        found = Checkpoints(self.folder / "checkpoints").newest(lambda text: print(text, flush=True))
        return found[1].position.step if found else 0

    def half_written(self) -> bool:
        return any(path.name.startswith(".") for path in (self.folder / "checkpoints").iterdir())


def one_life(run: Run, after: float) -> None:
    """Starts the run, waits for its first save to be whole, and kills all its processes `after` seconds later."""
    saves, processes = len(run.lines("whole")), len(run.lines("pids"))
    process = run.start(10**6)
    deadline = time.monotonic() + PATIENCE
    while len(run.lines("whole")) == saves:
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit((run.folder.parent / "log").read_text(encoding="utf-8", errors="replace"))
        time.sleep(0.002)
    time.sleep(after)
    for pid in run.lines("pids")[processes:]:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--live", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.live is not None:
        live(args.live)
        return
    sys.path[:0] = [str(ROOT), str(ROOT / "backends")]
    generator = random.Random(args.seed)
    flags = ["-n", str(args.processes), "--strategy", args.strategy]
    lost = half = 0
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(Path(scratch) / "killed" / "run", flags)
        run.folder.parent.mkdir()
        for _ in range(args.kills):
            one_life(run, generator.uniform(0, LONGEST))
            half += run.half_written()
            lost += run.newest() < run.lines("whole")[-1]
        step = run.newest()
        print(f"{args.kills} kills in {step} steps, {half} while a checkpoint was half-written; lost {lost}", flush=True)
        quiet = Run(Path(scratch) / "quiet" / "run", flags)
        quiet.folder.parent.mkdir()
        if quiet.start(step).wait():
            raise SystemExit((quiet.folder.parent / "log").read_text(encoding="utf-8", errors="replace"))
        killed, undisturbed = run.losses(), quiet.losses()
        pairs = [(killed[number], loss) for number, loss in undisturbed.items() if number in killed]
        same = sum(a == b for a, b in pairs)
        largest = max(abs(a - b) / abs(b) for a, b in pairs)
        print(f"losses equal to the bit in {same} of {len(pairs)} steps, largest relative difference {largest:.0e}")
        print(f"{step - len(pairs)} lines of metrics.jsonl were killed before they were written")
    if lost:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
