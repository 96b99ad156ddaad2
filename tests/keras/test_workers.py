"""Keras over two real processes on this machine, by hwal train and torchrun: one curve, one set of files, signals."""

from __future__ import annotations

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hwal.errors import WorldError
from hwal.values import World
from hwal_keras import workers
from tests.keras import jobs
from tests.launch.runs import Run, finish, wait_for

pytestmark = pytest.mark.slow
FLAGS = ("--device", "cpu", "--precision", "fp32", "--hang-timeout", "off")
SCRIPT = """
import keras, hwal
from tests.keras import jobs
def main():
    with hwal.start() as rt:
        data = jobs.dataset()
        model = jobs.compiled(rt)
        model.fit(rt.feed(data), epochs={epochs}, validation_data=rt.feed(data, train=False))
        print("rank", rt.rank, "of", rt.world_size, "is done", flush=True)
main()
"""
ROOT = str(Path(__file__).parents[2])


def run(folder: Path, epochs: int) -> Run:
    folder.mkdir(exist_ok=True)
    return Run(folder, f"import sys; sys.path.insert(0, {ROOT!r})" + SCRIPT.format(epochs=epochs))


def lines(job: Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in (job.out / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_have_the_curve_of_one(tmp_path: Path) -> None:
    both = run(tmp_path / "2", 2)
    with jobs.start(tmp_path / "1") as rt:
        data = jobs.dataset()
        jobs.compiled(rt).fit(rt.feed(data), epochs=2, validation_data=rt.feed(data, train=False))
    alone = jobs.lines(tmp_path / "1")
    code, said = finish(both.popen(*FLAGS, "-n", "2"), 240)
    assert code == 0 and "rank 0 of 2 is done" in said and "rank 1 of 2 is done" in both.log(1), said + both.log(1)
    assert [line["step"] for line in lines(both)] == [line["step"] for line in alone]
    for name in ("loss", "val_loss", "mae"):
        there = [line[name] for line in alone if name in line]
        assert [line[name] for line in lines(both) if name in line] == pytest.approx(there, rel=1e-5), name
    assert {path.name for path in (both.out / "checkpoints").iterdir()} == {"step-00000003", "step-00000006"}


def test_a_signal_to_hwal_saves_once_and_one_process_goes_on(tmp_path: Path) -> None:
    job = run(tmp_path, 100000)
    process = job.popen(*FLAGS, "-n", "2")
    wait_for(lambda: process.poll() is not None or (job.out / "checkpoints" / "step-00000003").exists(), 240)
    os.kill(process.pid, signal.SIGTERM)
    code, said = finish(process, 120)
    assert code == 75, said + job.log(1)
    done = json.loads((job.out / "preempted.json").read_text())["step"]
    assert len(lines(job)) == done and (job.out / "checkpoints" / f"step-{done:08d}").exists()
    assert not job.left_over()


HANGS = """
import threading
class Sleeps(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and hwal.worker._started[0].rank == 1:
            threading.Event().wait()
"""


def test_a_worker_that_hangs_is_named_with_its_step_and_line(tmp_path: Path) -> None:
    script = SCRIPT.replace("def main", f"{HANGS}def main").replace("epochs={epochs}", "epochs=3, callbacks=[Sleeps()]")
    script = script.replace(
        "        model.fit", "        print(model.predict(jobs.rows()[0]).shape, flush=True)\n        model.fit"
    )
    job = Run(tmp_path, f"import sys; sys.path.insert(0, {ROOT!r})" + script)
    flags = ("--device", "cpu", "--precision", "bf16", "--hang-timeout", "8", "-n", "2")
    code, said = finish(job.popen(*flags), 240)
    assert code == 1 and "(69, 1)" in said, said
    assert "hwal: error: rank 1 is busy after step 3: train.py:" in said and ", in on_epoch_begin" in said, said
    assert re.search(r"why:   rank 0 has waited \d+ s for it in model\.fit\n", said), said
    assert "the last finished checkpoint is whole: go on with --resume run" in said
    assert not job.left_over()


# where workers meet


def meet(folder: Path, rank: int, size: int, limit: float, environ: dict[str, str]) -> Any:
    world = World(rank, size, rank, size, "torchrun", "127.0.0.1", 29500)
    job: Any = SimpleNamespace(world=world, settings=SimpleNamespace(start_timeout=limit))
    return workers.meet(job, folder, environ)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_workers_meet_where_a_run_that_was_killed_has_left_its_files(tmp_path: Path, order: tuple[int, ...]) -> None:
    place = tmp_path / ".workers-0-29500"
    place.mkdir()
    stale = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]
    for rank, address in enumerate(stale):
        (place / str(rank)).write_text(json.dumps([address, "word"]))
    (place / workers.LIST).write_text(json.dumps([stale, ["", "word", "word"], "127.0.0.1 1 key"]))

    def came(rank: int) -> bool:
        """Whether a rank has done what it can do alone."""
        with suppress(FileNotFoundError):  # rank 0 clears
            return bool(json.loads((place / str(rank)).read_text())[0] != stale[rank])
        return False

    found: dict[int, dict[str, str]] = {rank: {} for rank in order}
    with ThreadPoolExecutor(3) as pool:
        waiting = {}
        for rank in order:
            waiting[rank] = pool.submit(meet, tmp_path, rank, 3, 60, found[rank])
            if rank != order[-1]:
                wait_for(partial(came, rank))
        links = {rank: call.result() for rank, call in waiting.items()}
    clusters = [json.loads(found[rank]["TF_CONFIG"]) for rank in range(3)]
    assert [one["task"]["index"] for one in clusters] == [0, 1, 2]
    assert all(one["cluster"] == clusters[0]["cluster"] for one in clusters)
    met = clusters[0]["cluster"]["worker"]
    assert len(set(met)) == 3 and not set(met) & set(stale)
    assert all(links.values()) and not place.exists()
    for rank in (1, 2, 0):
        links[rank].close()


@pytest.mark.parametrize(("rank", "named"), [(0, "ranks 1, 2"), (1, "ranks 0, 2")])
def test_workers_that_do_not_come_are_named(tmp_path: Path, rank: int, named: str) -> None:
    with pytest.raises(WorldError) as caught:
        meet(tmp_path, rank, 3, 0.2, {})
    assert caught.value.what == f"{named} did not come within 0.2 s" and "--start-timeout" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}', "TF_CONFIG says worker 1 of 2"),
        ('{"cluster"', "TF_CONFIG cannot be read"),
    ],
)
def test_a_cluster_of_the_users_must_be_this_world(text: str, what: str) -> None:
    with pytest.raises(WorldError, match=what):
        workers._check(text, World(0, 2, 0, 2, "torchrun", "127.0.0.1", 1))
    workers._check(
        '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}',
        World(0, 2, 0, 2, "torchrun", "127.0.0.1", 1),
    )
