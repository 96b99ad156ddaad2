"""Ranks that do not end when they are asked to: nobody waits for ever, and each is named."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable

import pytest

from .runs import LOOP, Run, Started, finish, wait_for
from .test_signals import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="/proc")]
torch = pytest.importorskip("torch")

ALL = -1
SHORT = 2.0  # seconds of grace in place of 30
HWAL = f"""
import sys
from hwal.launch import overdue
overdue.GRACE = 2 * {SHORT}  # the watchdogs, where there are any, come first
from hwal.cli import main
sys.exit(main())
"""
SCRIPT = f"""
import ctypes, itertools, os, time, torch, hwal
from hwal.watch import patience
from hwal_torch import saving
kind, whom = os.environ["KIND"], int(os.environ["WHOM"])
patience.HURRY = {SHORT} if kind != "alone" else 3 * {SHORT}  # its peers know only then that it is silent

def lock_twice(library):
    # no signal ends this call
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        library.pthread_mutex_lock(mutex)  # in C

def slowly(write):
    def save(*args):
        saving._lead = write
        for _ in range(40):  # longer than any grace
            time.sleep({SHORT} / 10)
            with open("progress", "ab") as file:
                file.write(b"x")
        write(*args)
    return save

def main():
    with hwal.start() as rt:
        with rt.scope():
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        rt.prepare(model, optimizer)
        if kind == "save":
            saving._lead = slowly(saving._lead)
        for epoch in rt.epochs(100000):
            for x in rt.feed(torch.utils.data.DataLoader([torch.ones(4)] * 16, batch_size=8)):
                rt.backward(model(x).mean())
                rt.step(optimizer)
                time.sleep(0.01)
                if rt.steps_done == 4:
                    rt.save(wait=kind != "save")
                if rt.steps_done == 5:
                    os.write(1, b"trains\\n")
                    if whom in (rt.rank, -1):
                        if kind in ("c", "alone"):
                            lock_twice(ctypes.CDLL(None) if kind == "c" else ctypes.PyDLL(None))
            if kind == "script" and whom in (rt.rank, -1) and rt.steps_done > 5:
                time.sleep(1000)  # outside
if __name__ == "__main__":
    main()
"""
ALONE = """
import os, sys, time, torch, hwal
def main():
    print("asked", input(), os.getsid(0) == os.getsid(os.getppid()), flush=True)
    with hwal.start() as rt:
        with rt.scope():
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        rt.prepare(model, optimizer)
        for epoch in rt.epochs(100000):
            for x in rt.feed(torch.utils.data.DataLoader([torch.ones(4)] * 16, batch_size=8)):
                rt.backward(model(x).mean())
                if rt.step(optimizer) and rt.steps_done == 5:
                    print("trains", flush=True)
if __name__ == "__main__":
    main()
"""
Make = Callable[[str], Run]


def start(run: Run, *flags: str, **env: str) -> Started:
    return run.program([sys.executable, "-c", HWAL, "train", *flags, "--out", "run", "train.py"], **env)


def asked(make: Make, kind: str, processes: int, whom: int, *flags: str) -> tuple[Run, int, str]:
    """What became of a run whose launcher got SIGTERM when the rank `whom` was at that."""
    run = make(SCRIPT)
    process = start(run, "--device", f"null:{processes}", *flags, KIND=kind, WHOM=str(whom))
    process.wait_for("trains")
    wait_for(lambda: all("trains" in run.log(rank) for rank in range(1, processes)))
    os.kill(process.pid, signal.SIGTERM)
    code, said = finish(process)
    return run, code, re.sub(r"\b\d+ s\b", "N s", said[said.find("hwal: error: ") :])


def line_of(comment: str) -> int:
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith(f"# {comment}"))


RUSH = "the run was asked to end, and waits no longer"
LAUNCHED = "hwal: the last finished checkpoint is whole: go on with --resume run\n"
LATE = [
    ("c", 1, "off", f"the run has been stuck for N s in step 6: train.py:{line_of('in C')}, in lock_twice"),
    ("c", 2, None, f"rank 1 has been stuck for N s in step 6: train.py:{line_of('in C')}, in lock_twice"),
    (
        "alone",
        2,
        "off",
        f"rank 1 has been stuck for N s in step 6: train.py:{line_of('in C')}, in lock_twice, "
        "in a call that lets no other Python run",
    ),
    ("script", 1, None, f"the run has been stuck for N s after step 6: train.py:{line_of('outside')}, in main"),
]


@pytest.mark.parametrize(("kind", "processes", "timeout", "text"), LATE)
def test_a_rank_that_does_not_end_is_named(make: Make, kind: str, processes: int, timeout: str | None, text: str) -> None:
    """In a call of C's, with and without the interpreter's lock, and in the script's own code; also where no hang would be."""
    _, code, said = asked(make, kind, processes, processes - 1, *(("--hang-timeout", timeout) if timeout else ()))
    assert code == 1, said
    assert said.startswith(f"hwal: error: SIGTERM: {text}\n"), said
    if processes == 1:
        assert said.endswith(f"  why:   {RUSH}\n  try:   --resume run goes on from step-00000004\n"), said
    else:
        assert said.endswith(f"  why:   rank 0 has waited N s for it in rt.backward; {RUSH}\n{LAUNCHED}"), said


def test_the_launcher_ends_ranks_none_of_which_can(make: Make) -> None:
    """All are in calls that let no other Python run: no watchdog is at work."""
    _, code, said = asked(make, "alone", 2, ALL)
    place = f"train.py:{line_of('in C')}, in lock_twice, in a call that lets no other Python run"
    assert (code, said) == (
        1,
        f"hwal: error: SIGTERM: the ranks did not end within N s: rank 0 is at {place}; rank 1 is at {place}\n"
        f"  why:   {RUSH}\n{LAUNCHED}",
    )


def test_the_launcher_ends_a_script_that_takes_signals_as_it_likes(make: Make) -> None:
    run = make(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('trains', flush=True)\ntime.sleep(99)"
    )
    process = start(run, "--device", "null:2")
    process.wait_for("trains")
    wait_for(lambda: "trains" in run.log(1))
    os.kill(process.pid, signal.SIGTERM)
    code, said = finish(process)
    assert code == 1, said
    told = re.sub(r"\d+", "N", said[said.index("hwal: error: ") :])
    one = "rank N (process N) is not within hwal.start()"
    assert told == f"hwal: error: SIGTERM: the ranks did not end within N s: {one}; {one}\n  why:   {RUSH}\n"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_save_is_not_cut_off(make: Make, processes: int) -> None:
    """The one in the making takes longer than any grace; that of the last step follows."""
    run, code, said = asked(make, "save", processes, 0)
    assert code == 75, said
    assert (run.folder / "progress").stat().st_size == 40
    assert len(list((run.out / "checkpoints").glob("step-*"))) == 2


def test_a_signal_while_no_rank_has_started_ends_it_at_once(make: Make) -> None:
    """The other machine is not there: the agent waits for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = make(SCRIPT)
    nodes = f"--engine-args=--nnodes 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --local-addr 127.0.0.1"
    process = run.popen("--device", "null:1", nodes)
    wait_for(lambda: _listens(port))
    os.kill(process.pid, signal.SIGUSR1)
    code, said = finish(process)
    assert code == 1, said
    told = "hwal: SIGUSR1 before any rank had started: nothing is lost, and there is no checkpoint to go on from\n"
    assert said.endswith(told) and "passed on" not in said, said


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_single_process_with_a_parent_keeps_the_terminal(make: Make) -> None:
    """The micro-batch is searched for: Ctrl-C and input() are as in a run without a parent."""
    run = make(ALONE)
    argv = [sys.executable, "-m", "hwal", "train", "--device", "null:1", "--micro-batch", "auto", "--out", "run", "train.py"]
    terminal = Terminal(argv, run)
    wait_for(lambda: "hwal: run" in terminal.said())
    terminal.type("hello\n")
    wait_for(lambda: "asked hello True" in terminal.said() and "trains" in terminal.said())
    terminal.type("\x03")
    code, said = terminal.wait(), terminal.said()
    assert code == 75 and "Traceback" not in said and "SIGINT: saved run/checkpoints/step-" in said, said


@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_that_was_stopped_goes_on(make: Make, processes: int) -> None:
    """For longer than a rank may be without progress, and by SIGSTOP, which no handler sees."""
    run = make(LOOP)
    process = run.popen("--device", f"null:{processes}", "--hang-timeout", "3")
    process.wait_for("trains")
    wait_for(lambda: (run.out / "metrics.jsonl").exists())
    ranks = [process.pid] if processes == 1 else list(run.pids().values())
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(11)  # the limit, and what comes on top of it
    done = len(run.steps())
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: len(run.steps()) > done, 60)
    os.kill(process.pid, signal.SIGTERM)
    code, said = finish(process)
    assert code == 75, said
