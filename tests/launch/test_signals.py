"""Signals to a real run: hwal, one of its ranks or the whole terminal, in any moment."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from .runs import LOOP, Run, Started, finish, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and process groups")]
torch = pytest.importorskip("torch")


def started(run: Run, process: Started, ranks: int, text: str) -> None:
    """Every rank has printed that."""
    process.wait_for(text)
    for rank in range(1, ranks):
        wait_for(lambda rank=rank: text in run.log(rank))  # type: ignore[misc]


Make = Callable[[str], Run]
NOTHING = "nothing is lost, and there is no checkpoint to go on from"


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_a_signal_to_hwal_saves(make: Make, name: str, processes: int) -> None:
    run = make(LOOP)
    process = run.popen("--device", f"null:{processes}")
    started(run, process, processes, "trains")
    os.killpg(process.pid, signal.Signals[name])  # as a terminal sends it, and as `kill` does where hwal is alone
    code, said = finish(process)
    assert code == 75, said
    assert json.loads((run.out / "preempted.json").read_text())["signal"] == name
    assert said.splitlines()[-1].startswith(f"{name}: saved run/checkpoints/step-"), said
    assert said.splitlines()[-1].endswith("go on with --resume run")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_rank_saves_on_all(make: Make, name: str, rank: int) -> None:
    run = make(LOOP)
    process = run.popen("--device", "null:2")
    started(run, process, 2, "trains")
    os.kill(run.pids()[rank], signal.Signals[name])
    code, said = finish(process)
    assert code == 75 and "saved run/checkpoints/step-" in said, said


WARM_UP = """
import os, time, torch, hwal
def wait(moment):
    if moment == os.environ.get("MOMENT"):
        print("waits", flush=True)
        time.sleep(60)
wait("imports")
def main():
    with hwal.start() as rt:
        with rt.scope():
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
            wait("scope")
        rt.prepare(model, optimizer)
        data = torch.utils.data.DataLoader([torch.ones(4)] * 16, batch_size=8)
        for epoch in rt.epochs(2):
            for x in rt.feed(data):
                rt.backward(model(x).mean())
                rt.step(optimizer)
            rt.save()
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("processes", "whom", "moment"),
    [(1, "hwal", "imports"), (1, "hwal", "scope"), (2, "hwal", "imports"), (2, "rank", "imports")],
)
def test_a_signal_in_warm_up_ends_it(make: Make, processes: int, whom: str, moment: str) -> None:
    """There is nothing to lose: 75 where there is a checkpoint to go on from, else 1, and words."""
    run = make(WARM_UP)
    device = ("--device", f"null:{processes}")
    for flags, expected in ((), 1), (("--resume",), 75):
        process = run.popen(*device, *flags, MOMENT=moment)
        started(run, process, processes, "waits")
        os.kill(process.pid if whom == "hwal" else run.pids()[1], signal.SIGTERM)
        code, said = finish(process)
        assert code == expected, said
        assert (NOTHING if expected == 1 else "go on with --resume run") in said, said
        assert "Traceback" not in said
        if expected == 1:
            assert not (run.out / "preempted.json").exists()
            assert run(*device)[0] == 0  # nothing stands in its way


def test_a_second_signal_ends_all_at_once(make: Make) -> None:
    stubborn = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('process', flush=True)\ntime.sleep(60)"
    )
    run = make(stubborn)
    process = run.popen("--device", "null:2")
    wait_for(lambda: "process" in run.log(1))
    process.send_signal(signal.SIGTERM)
    time.sleep(0.7)
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code, said = finish(process, 10)
    assert code == 1 and "all ranks were ended" in said and time.monotonic() - begun < 3


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")
@pytest.mark.parametrize("whom", ["hwal", "agent"])
def test_nobody_stays_when_the_launcher_is_killed(make: Make, whom: str) -> None:
    stubborn = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('process', os.getpid(), 'agent', os.getppid(), flush=True)\ntime.sleep(60)"
    )
    run = make(stubborn)
    process = run.popen("--device", "null:2")
    wait_for(lambda: "agent" in run.log(1))
    pid = process.pid if whom == "hwal" else int(run.log(1).split()[-1])
    os.kill(pid, signal.SIGKILL)
    finish(process, 10)
    wait_for(lambda: not run.left_over(), 5)
