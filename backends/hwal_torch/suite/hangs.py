"""P5: a rank that is stuck, or gone, is named, with its line, and no rank waits for it any longer."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest

from hwal.env import Settings
from hwal.runtime import TorchRuntime
from hwal_torch.suite.base import Suite

TIMEOUT = 2.0  # seconds
SCRIPT = """
import itertools, os, signal, sys, time
import torch, torch.distributed
from torch.utils.data import DataLoader, Dataset

last = rt.rank == rt.world_size - 1

class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if kind in ("starving", "starving worker") and last and index >= 24:
            time.sleep(1000)  # starving
        return torch.ones(4)

def preprocess():
    time.sleep(1000)  # stuck

def hang():
    if kind == "stuck" and last:
        preprocess()
    if kind == "lock" and last:
        sum(itertools.repeat(0))  # lock
    if kind == "collective" and last:
        torch.distributed.recv(torch.zeros(1, device=rt.device), src=0)  # collective
    if kind == "main" and rt.is_main:
        time.sleep(1000)  # main
    if kind in ("killed", "killed while all compute") and last:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "killed while all compute":
        time.sleep(1000)
    if kind == "exit" and last:
        os._exit(0)
    if kind == "end" and last:
        sys.exit()
    if kind == "failed" and last:
        raise ValueError("planted")
    if kind == "evaluating":
        for batch in rt.feed(loader, train=False):
            if last:
                time.sleep(1000)  # evaluating

with rt.scope():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rt.prepare(model, optimizer)
loader = DataLoader(Rows(), batch_size=8, num_workers=1 if kind == "starving worker" else 0)
for batch in rt.feed(loader):
    if rt.steps_done == 3:
        (rt.run_dir / f"hangs-{rt.rank}").touch()
        hang()
    rt.backward(model(batch).pow(2).mean())
    rt.step(optimizer)
    if kind == "all well" and rt.steps_done < 4:
        time.sleep(0.7)
"""

STUCK = {
    "stuck": "rank 1 has been stuck for {s} s in step 4: stuck.py:{line}, in preprocess",
    "lock": "rank 1 has been stuck for {s} s in step 4: stuck.py:{line}, in hang, in a call that lets no other Python run",
    "starving": "rank 1 has waited {s} s for data in step 4: Rows gave nothing; stuck.py:{line}, in __getitem__",
    "starving worker": "rank 1 has waited {s} s for data in step 4: Rows gave nothing "
    "(worker: process {pid} at stuck.py:{line}, in __getitem__); stuck.py:{feed}, in <module>",
    "main": "rank 0 has been stuck for {s} s in step 4: stuck.py:{line}, in hang",
    "evaluating": "rank 1 has been stuck in evaluation for {s} s after step 3: stuck.py:{line}, in hang",
}
GONE = {
    "killed": "rank 1 is gone after step 3: its process {pid} was killed",
    "killed while all compute": "rank 1 is gone after step 3: its process {pid} was killed",
    "exit": "rank 1 is gone",
    "end": "rank 1 ended after step 3, while the others wait for it",
    "failed": "rank 1 failed after step 3: ValueError: planted",
}


def run_script(rt: TorchRuntime, script: Path, kind: str) -> None:
    """What the suite's script does, with what it prints in run_dir/rank-N.txt."""
    descriptor = os.open(rt.run_dir / f"rank-{rt.rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 2)
    runpy.run_path(str(script), {"rt": rt, "kind": kind}, "__main__")


class HangTests(Suite):
    """Nobody waits for half an hour."""

    def hang(self, kind: str, folder: Path, timeout: float = TIMEOUT) -> list[str]:
        """Runs the script on two ranks, none of which has an end of its own; what each said."""
        (size,) = self.worlds(2)
        script = folder / "stuck.py"
        script.write_text(SCRIPT, encoding="utf-8")
        settings = Settings(precision="fp32", hang_timeout=timeout)
        outcomes = self.run(size, run_script, script, kind, folder=folder / "run", settings=settings)
        texts = [(folder / "run" / f"rank-{rank}.txt").read_text(encoding="utf-8") for rank in range(size)]
        return [outcome.error or text for outcome, text in zip(outcomes, texts, strict=True)]

    @pytest.mark.parametrize("kind", STUCK)
    def test_a_stuck_rank_is_named(self, tmp_path: Path, kind: str) -> None:
        """P5: all ranks end, with the line at which one of them is stuck: in Python, in a call that lets no other run, in its
        loader, in a loader's worker, alone on the main rank, in an evaluation."""
        for said in self.hang(kind, tmp_path)[: 1 if kind == "lock" else 2]:
            assert re.search(expected(STUCK[kind], kind), said), said

    def test_ranks_that_wait_for_each_other_are_named(self, tmp_path: Path) -> None:
        """P5: all ranks end, with the calls in which each waits for the other."""
        for said in self.hang("collective", tmp_path):
            assert "the ranks have waited for each other" in said, said
            assert "rank 0 in rt.backward at stuck.py:" in said and "rank 1 in torch.distributed" in said, said
            assert f"at stuck.py:{line_of('collective')}, in hang" in said, said

    @pytest.mark.parametrize("kind", GONE)
    def test_a_rank_that_is_gone_is_named(self, tmp_path: Path, kind: str) -> None:
        """P5: the others end, and name the one that was killed, failed, or ended before them."""
        said = self.hang(kind, tmp_path)[0]
        assert re.search(expected(GONE[kind], kind), said), said

    def test_slow_steps_are_no_hang(self, tmp_path: Path) -> None:
        """P5: a run whose steps take a part of the limit each ends as if nobody watched (tests of hwal.watch have the rest)."""
        assert not any("error" in said for said in self.hang("all well", tmp_path, 6.0))


def line_of(text: str) -> int:
    """The line of the script that ends with this comment."""
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith(f"# {text}"))


def expected(words: str, kind: str) -> str:
    """As a regular expression."""
    line = line_of(kind.partition(" ")[0]) if kind in STUCK else 0
    feed = SCRIPT.splitlines().index("for batch in rt.feed(loader):") + 1
    return (
        re.escape(words.format(s="SECONDS", pid="PID", line=line, feed=feed)).replace("SECONDS", r"\d+").replace("PID", r"\d+")
    )
