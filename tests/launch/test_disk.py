"""Runs on a disk that fills up: a real one of a megabyte, which a namespace of the test's own mounts and takes with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.launch.runs import Run, finish

SCRIPT = """
import os, signal, sys, torch, hwal
def fill(rt):
    if rt.is_main:
        with open(rt.run_dir.parent / "fill", "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)): pass
            except OSError: pass
    rt.barrier()
def main():
    with hwal.start() as rt:
        with rt.scope():
            model = torch.nn.Linear(256, 64)
            optimizer = torch.optim.AdamW(model.parameters())
        rt.prepare(model, optimizer)
        for _ in rt.epochs(steps=8):
            for x in rt.feed(torch.utils.data.DataLoader([torch.ones(256)] * 32, batch_size=8)):
                rt.backward(model(x).mean())
                rt.step(optimizer)
                if rt.steps_done == 2:
                    rt.save(wait=True)
                if rt.steps_done == 5:
                    fill(rt)
                    {body}
if __name__ == "__main__":
    main()
"""
DISK = """
mkdir disk && mount -t tmpfs -o size=1m none disk && "$@"
code=$?
cp -r disk/run left
exit $code
"""
MOUNTS = ("unshare", "-rm", "sh", "-c")


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*MOUNTS, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode == 0


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_mount(), reason="no file system can be mounted here")]


class Case(NamedTuple):
    """What the script does at step 5, when the disk has just been filled; the exit code, words that must be there, and what the
    run's folder holds then."""

    flags: str
    body: str
    code: int
    said: tuple[str, ...]
    left: tuple[str, ...] = ("checkpoints/step-00000002/hwal.json", "metrics.jsonl", "plan.json")


SAVED = (
    "the checkpoint could not be written: No space left on device",
    "why:   earlier checkpoints are untouched; the newest is step-00000002",
    "try:   free space or choose another --out, then go on with --resume",
)
CASES = {
    "a save fails": Case("", "rt.save()", 1, SAVED),
    "a save of two ranks fails": Case("-n 2 --strategy fsdp:full", "rt.save()", 1, SAVED),
    "a save at a signal fails": Case("-n 2", "os.kill(os.getpid(), signal.SIGTERM)", 1, SAVED),
    "a rank prints": Case("-n 2", "rt.rank and print('x' * 10**5, flush=True)", 0, ("8 steps in ",)),
    "the script fails": Case("-n 2", "1 / 0", 1, ("ZeroDivisionError: division by zero", "is whole: go on with --resume")),
}


@pytest.mark.parametrize("name", CASES)
def test_a_disk_that_fills_up(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    run = Run(tmp_path, SCRIPT.replace("{body}", case.body))
    command = [sys.executable, "-m", "hwal", "train", *case.flags.split(), "--out", "disk/run", "train.py"]
    code, said = finish(run.program([*MOUNTS, DISK, "sh", *command]))
    assert code == case.code, said
    assert all(words in said for words in case.said), said
    assert "Traceback" not in said or "1 / 0" in case.body, said
    assert all((tmp_path / "left" / path).exists() for path in case.left), list((tmp_path / "left").rglob("*"))
    assert not (tmp_path / "left" / "preempted.json").exists()
    assert run.left_over() == []


@pytest.mark.parametrize("size", ["4k", "8k"])
def test_a_folder_for_temporary_files_that_is_full(tmp_path: Path, size: str) -> None:
    run = Run(tmp_path, SCRIPT.replace("{body}", "pass"))
    disk = f'mkdir tmp && mount -t tmpfs -o size={size} none tmp && exec "$@"'
    command = [sys.executable, "-m", "hwal", "train", "-n", "2", "--out", "run", "train.py"]
    code, said = finish(run.program([*MOUNTS, disk, "sh", *command], TMPDIR=str(tmp_path / "tmp")))
    assert code == 1 and "No space left on device" in said and "another TMPDIR" in said, said
    assert "Traceback" not in said, said


LOADS = """
import torch, hwal
def main():
    with hwal.start() as rt:
        with rt.scope():
            model = torch.nn.Linear(1 << 18, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rt.prepare(model, optimizer)
        data = torch.ones(1, 1 << 18).expand(64, 1 << 18)
        for _ in rt.epochs(1):
            for (x,) in rt.feed(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), 16, num_workers=1)):
                rt.backward(model(x).mean())
                rt.step(optimizer)
if __name__ == "__main__":
    main()
"""


def test_shared_memory_that_is_too_small(tmp_path: Path) -> None:
    """A container's 64 MiB of it: here 8 MiB, and batches of 16."""
    run = Run(tmp_path, LOADS)
    command = [sys.executable, "-m", "hwal", "train", "--out", "run", "train.py"]
    code, said = finish(run.program([*MOUNTS, 'mount -t tmpfs -o size=8m none /dev/shm && exec "$@"', "sh", *command]))
    assert code == 1 and "out of shared memory, through which a loader's workers hand batches over" in said, said
    assert "of the 8.0 MiB of /dev/shm" in said and "--shm-size=8g" in said and "Traceback" not in said, said
