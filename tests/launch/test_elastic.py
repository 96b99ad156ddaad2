"""Worlds that torchrun starts again: after a rank, smaller after a machine, larger when one comes; the curve stays."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable

import pytest

from .runs import Run, Started, finish, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")]
torch = pytest.importorskip("torch")

SCRIPT = """
import os, signal, time, torch, hwal
from pathlib import Path

def meet(rt, step):
    what, where = os.environ.get("MEETS", "nothing"), Path("met")
    if what == "nothing" or step != 5:
        return
    if what == "an error":
        raise ValueError("planted")
    if what == "a wait":
        print("waits at world", rt.world_size, flush=True)
        while not where.exists():
            time.sleep(0.01)
    if what == "a kill" and rt.rank == 1 and not where.exists():
        where.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def main():
    generator = torch.Generator().manual_seed(1)
    rows = [(torch.randn(4, generator=generator), torch.randn(1, generator=generator)) for _ in range(22)]
    loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
    with hwal.start() as rt:
        with rt.scope():
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        rt.prepare(model, optimizer)
        for epoch in rt.epochs(4):
            for x, y in rt.feed(loader):
                rt.backward(torch.nn.functional.mse_loss(model(x), y))
                if rt.step(optimizer):
                    if rt.steps_done % 2 == 0:
                        rt.save(wait=True)
                    meet(rt, rt.steps_done)

if __name__ == "__main__":
    main()
"""
STEPS = list(range(1, 13))
QUICK = "--rdzv-conf keep_alive_interval=1,keep_alive_max_attempt=5,last_call_timeout="  # torchrun's own: 5 s, 3, 30 s


def losses(run: Run) -> list[float]:
    return [json.loads(line)["loss"] for line in (run.out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def whole(make: Callable[[str], Run]) -> list[float]:
    """The curve of a run that nothing happens to."""
    run = make(SCRIPT)
    code, said = finish(
        run.program([sys.executable, "-m", "hwal", "train", "--device", "null:1", "--out", "whole", "train.py"])
    )
    assert code == 0, said
    run.out = run.folder / "whole"
    return losses(run)


def check(run: Run, whole: list[float]) -> None:
    assert run.steps() == STEPS
    assert losses(run) == pytest.approx(whole, rel=1e-6)


def test_a_killed_rank_is_named_and_the_world_goes_on(make: Callable[[str], Run], whole: list[float]) -> None:
    run = make(SCRIPT)
    code, said = run("--device", "null:2", "--engine-args=--max-restarts 2", MEETS="a kill")
    assert code == 0, said
    assert "hwal: rank 1 of 2 on null:1 was killed by SIGKILL" in said and "(restart 1 of 2)" in said, said
    assert "start 2 of this world: 2 rank(s) on 1 machine" in said
    assert "resumed run/checkpoints/step-00000004 at step 4" in said
    check(run, whole)


def test_an_error_that_comes_again_ends_the_run(make: Callable[[str], Run]) -> None:
    run = make(SCRIPT)
    code, said = run("--device", "null:2", "--engine-args=--max-restarts 1", MEETS="an error")
    assert code == 1 and "(restart 1 of 1)" in said, said
    assert "failed first: ValueError: planted" in said and "the world was started again once before" in said, said
    assert "the last finished checkpoint is whole: go on with --resume run" in said
    assert run.steps() == STEPS[:5]


def meeting() -> tuple[int, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return port, f"--nnodes 1:2 --max-restarts 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --local-addr 127.0.0.1"


def serves(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def machine(run: Run, name: str, flags: str) -> Started:
    """One of the machines, with a folder for temporary files of its own."""
    (run.tmp / name).mkdir()
    return run.popen("--device", "null:1", f"--engine-args={flags}", TMPDIR=str(run.tmp / name), MEETS="a wait")


def test_a_lost_machine_leaves_a_smaller_world(make: Callable[[str], Run], whole: list[float]) -> None:
    """The machine that is left serves the rendezvous: torchrun has no other."""
    run = make(SCRIPT)
    port, flags = meeting()
    stays = machine(run, "a", f"{flags} {QUICK}8")
    wait_for(lambda: serves(port))
    goes = machine(run, "b", f"{flags} {QUICK}8")
    wait_for(lambda: "waits at world 2" in stays.said + goes.said, 150)
    wait_for(lambda: "waits at world 2" in run.log(1))
    (agent,) = (run.tmp / "b").glob("hwal-*/agent.pid")
    os.kill(int(agent.read_text()), signal.SIGKILL)
    (run.folder / "met").touch()
    assert finish(goes)[0] == 1
    code, said = finish(stays, 90)
    assert code == 0, said
    assert "start 2 of this world: 1 rank(s) on 1 machine; strategy single" in said, said
    assert "saved under ddp, at world size 2; goes on under single, at world size 1" in said, said
    check(run, whole)


def test_a_machine_that_comes_makes_a_larger_world(make: Callable[[str], Run], whole: list[float]) -> None:
    run = make(SCRIPT)
    _, flags = meeting()
    first = machine(run, "a", f"{flags} {QUICK}1")
    first.wait_for("waits at world 1")
    second = machine(run, "b", f"{flags} {QUICK}1")
    wait_for(lambda: "another machine is there" in first.said, 150)
    (run.folder / "met").touch()
    for process in (first, second):
        code, said = finish(process, 90)
        assert code == 0, said
    assert "2 rank(s) on 2 machines" in first.said + second.said
    check(run, whole)


def test_a_machine_that_was_given_up_takes_its_ranks_back(make: Callable[[str], Run], whole: list[float]) -> None:
    """Its agent stood still for a while, and the next machine went on without it: two worlds must not train in one folder."""
    run = make(SCRIPT)
    port, flags = meeting()
    rendezvous = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, multi_tenant=True)
    first = machine(run, "a", f"{flags} {QUICK}1")
    first.wait_for("waits at world 1")
    (agent,) = (run.tmp / "a").glob("hwal-*/agent.pid")
    os.kill(int(agent.read_text()), signal.SIGSTOP)
    second = machine(run, "b", f"{flags} {QUICK}1")
    wait_for(lambda: "waits at world 1" in second.said, 150)
    os.kill(int(agent.read_text()), signal.SIGCONT)
    wait_for(lambda: "have not heard of this one, and went on without it" in first.said, 150)
    wait_for(lambda: "waits at world 2" in first.said + second.said, 150)
    (run.folder / "met").touch()
    for process in (first, second):
        code, said = finish(process, 90)
        assert code == 0, said
    check(run, whole)
    del rendezvous
