"""Signals to a real run: hwal, one of its ranks or the whole terminal, in any moment."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hwal.preempt import ECHO
from hwal.watch.stacks import children_of

from .runs import ENV, LOOP, Run, Started, finish, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and process groups")]
torch = pytest.importorskip("torch")


def started(run: Run, process: Started, ranks: int, text: str) -> None:
    """Every rank has printed that."""
    process.wait_for(text)
    for rank in range(1, ranks):
        wait_for(lambda rank=rank: text in run.log(rank))  # type: ignore[misc]


class Terminal:
    """A terminal of its own, in which a program runs in the foreground."""

    def __init__(self, argv: list[str], run: Run) -> None:
        self._read = b""
        environ = {**os.environ, **ENV, "TMPDIR": str(run.tmp)}
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(run.folder)
            os.execve(argv[0], argv, environ)
        os.set_blocking(self._terminal, False)

    def said(self) -> str:
        with suppress(OSError):  # nothing more yet; or, at the end, nobody there
            while more := os.read(self._terminal, 1 << 16):
                self._read += more
        return self._read.decode(errors="replace")

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def close(self) -> None:
        os.close(self._terminal)

    def wait(self) -> int:
        ended: list[int] = []

        def look() -> bool:
            self.said()  # a full terminal would hold it up
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            ended.extend([os.waitstatus_to_exitcode(status)] if pid else [])
            return bool(pid)

        wait_for(look, 60)
        return ended[0]


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
try:
    wait("swallowed")
except BaseException:
    pass
try:
    wait("fails")
except BaseException:
    raise ImportError("cannot load module more than once per process") from None
def main():
    with hwal.start() as rt:
        with rt.scope():
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
            try:
                wait("built")
            except BaseException:
                raise ValueError("the model cannot be built") from None
        rt.prepare(model, optimizer)
        wait("prepared")
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
    [(1, "hwal", "swallowed"), (1, "hwal", "prepared"), (2, "hwal", "imports"), (2, "rank", "fails"), (1, "hwal", "built")],
)
def test_a_signal_in_warm_up_ends_it(make: Make, processes: int, whom: str, moment: str) -> None:
    """There is nothing to lose: 75 where there is a checkpoint to go on from, else 1, and words; whatever an import or a
    library makes of what the signal raises in it."""
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
            again = ("--resume",) if moment == "prepared" else ()  # nothing stands in the way of either
            code, said = run(*device, *again)
            assert code == 0 and ("nothing was saved in run yet: begins from the start" in said) == bool(again), said


WORKERS = """
import os, time, torch, hwal
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.ones(4)
def main():
    with hwal.start() as rt:
        with rt.scope():
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        rt.prepare(model, optimizer)
        for epoch in rt.epochs(5):
            for x in rt.feed(torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=2)):
                rt.backward(model(x).mean())
                if rt.step(optimizer) and rt.steps_done == 3:
                    print("rank", rt.rank, "trains", flush=True)
if __name__ == "__main__":
    main()
"""


def workers_of(pid: int) -> set[int]:
    """The child processes of a rank."""
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_in_a_terminal_reaches_everyone_and_saves(make: Make, processes: int) -> None:
    """The terminal sends it to the whole foreground group, loaders' workers among it; they must not fail the last step."""
    run = make(WORKERS)
    argv = [sys.executable, "-m", "hwal", "train", "--device", f"null:{processes}", "--out", "run", "train.py"]
    terminal = Terminal(argv, run)
    wait_for(lambda: "rank 0 trains" in terminal.said())
    terminal.type("\x03")
    code = terminal.wait()
    said = terminal.said()
    assert code == 75, said
    assert "Traceback" not in said and "exited unexpectedly" not in said, said
    assert said.split("\r\n")[-2].startswith("SIGINT: saved run/checkpoints/step-"), said


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_terminal_that_closes_saves(make: Make) -> None:
    """SIGHUP; what the script prints afterwards goes nowhere, and fails nothing."""
    run = make(
        WORKERS.replace("if rt.step(optimizer) and", "print('x'); rt.step(optimizer); if").replace(
            "; if", "\n                if"
        )
    )
    argv = [sys.executable, "-m", "hwal", "train", "--device", "null:2", "--out", "run", "train.py"]
    terminal = Terminal(argv, run)
    wait_for(lambda: "rank 0 trains" in terminal.said())
    terminal.close()
    assert terminal.wait() == 75
    assert json.loads((run.out / "preempted.json").read_text())["signal"] == "SIGHUP"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_a_signal_to_the_agent_alone_changes_nothing(make: Make, name: str) -> None:
    """It ends by itself, or by its launcher."""
    run = make(WARM_UP)
    process = run.popen("--device", "null:2", MOMENT="imports")
    started(run, process, 2, "waits")
    (agent,) = children_of(process.pid)
    os.kill(agent, signal.Signals[name])
    time.sleep(0.5)  # it has had its time to end them
    assert set(run.pids().values()) == set(children_of(agent))
    os.kill(process.pid, signal.SIGTERM)
    code, said = finish(process)
    assert code == 1 and "SIGTERM before hwal.start(): " in said, said


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_scheduler_that_signals_every_process_of_a_job_has_it_saved(make: Make, name: str) -> None:
    """As Slurm does, with scancel and --signal=USR1@90: hwal, torchrun, ranks and loaders' workers all at once."""
    run = make(WORKERS)
    process = run.popen("--device", "null:2", SLURM_JOB_ID="7")
    started(run, process, 2, "trains")
    ranks = list(run.pids().values())
    (agent,) = children_of(process.pid)
    for pid in [agent, *(worker for rank in ranks for worker in workers_of(rank)), *ranks, process.pid]:
        os.kill(pid, signal.Signals[name])
    code, said = finish(process)
    assert code == 75, said
    assert "${SLURM_RESTART_COUNT:+--resume run} says so where the job was requeued" in said, said


def test_what_a_busy_launcher_passes_on_late_is_no_second_signal(make: Make) -> None:
    """hwal takes its part of a scheduler's signal when a rank, which had its own, is still in its step."""
    run = make(
        LOOP.replace("time.sleep(0.01)", "time.sleep(0.01 if rt.steps_done < 3 else 3 * ECHO)").replace("ECHO", str(ECHO))
    )
    process = run.popen("--device", "null:2")
    started(run, process, 2, "trains")
    for pid in run.pids().values():
        os.kill(pid, signal.SIGUSR1)
    time.sleep(1.5 * ECHO)
    process.send_signal(signal.SIGUSR1)
    code, said = finish(process)
    assert code == 75 and "passed on" in said, said


def test_two_runs_in_one_folder_do_not_meet_and_a_finished_one_says_so(make: Make) -> None:
    run = make(WARM_UP)
    first = run.popen("--device", "null:1", MOMENT="imports")
    first.wait_for("waits")
    code, said = run("--device", "null:2")
    assert code == 2 and "another run is at work in run" in said, said
    first.kill()
    first.wait()
    assert run("--device", "null:1")[0] == 0
    code, said = run("--device", "null:1", "--resume")
    assert code == 0 and "no step was left to do: 4 were done before; see run" in said, said


def test_a_second_signal_ends_all_at_once(make: Make) -> None:
    stubborn = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('process', flush=True)\ntime.sleep(60)"
    )
    run = make(stubborn)
    process = run.popen("--device", "null:2")
    wait_for(lambda: "process" in run.log(1))
    process.send_signal(signal.SIGTERM)
    process.wait_for("passed on")
    wait_for(lambda: process.send_signal(signal.SIGTERM) or time.sleep(ECHO) or process.poll() is not None)
    code, said = finish(process)
    assert code == 1 and "SIGTERM again: ends all ranks now\nhwal: all ranks were ended" in said, said


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


AFTER = WARM_UP.replace(
    "if __name__",
    """    print("is through", flush=True)
    while not os.path.exists("over"):
        time.sleep(0.01)
if __name__""",
)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_signal_in_what_a_script_does_after_the_run_ends_it(make: Make, processes: int) -> None:
    run = make(AFTER)
    process = run.popen("--device", f"null:{processes}")
    started(run, process, processes, "is through")
    os.kill(process.pid, signal.SIGTERM)
    code, said = finish(process)
    assert code == 75 and said.splitlines()[-1] == "hwal: SIGTERM after the last step: go on with --resume run", said


def test_a_signal_while_the_last_checkpoint_is_written_ends_what_comes_after_it(make: Make) -> None:
    """The script goes on for long then: the signal was for it too."""
    at_last = """        is_written = rt.saving.wait
        def wait_late():
            os.kill(os.getpid(), signal.SIGUSR1)
            is_written()
        rt.saving.wait = wait_late
    print("is through"""
    run = make("import signal\n" + AFTER.replace('    print("is through', at_last, 1))
    code, said = run("--device", "null:1")
    assert code == 75 and said.splitlines()[-1] == "hwal: SIGUSR1 after the last step: go on with --resume run", said
    assert "is through" not in said


def test_a_signal_to_one_rank_after_the_run_leaves_the_others_at_it(make: Make) -> None:
    run = make(AFTER)
    process = run.popen("--device", "null:2")
    started(run, process, 2, "is through")
    os.kill(run.pids()[1], signal.SIGTERM)
    wait_for(lambda: "after the last step" in run.log(1))
    (run.folder / "over").touch()
    code, said = finish(process)
    assert code == 0, said


@pytest.mark.parametrize("processes", [1, 2])
def test_a_signal_while_a_run_that_is_done_leaves_its_world_changes_nothing(make: Make, processes: int) -> None:
    late = """
import signal
from hwal_torch import world
leave = world.leave
def leave_late():
    os.kill(os.getpid(), signal.SIGTERM)
    print("is told", flush=True)
    leave()
world.leave = leave_late
"""
    run = make(WARM_UP.replace("def wait(", late + "def wait("))
    code, said = run("--device", f"null:{processes}")
    assert code == 0 and "is told" in said and "saving" not in said and "SIGTERM" not in said, said


@pytest.mark.parametrize("processes", [1, 2])
def test_a_signal_after_the_end_changes_nothing(make: Make, processes: int) -> None:
    """While torch takes itself down, say."""
    last = "(os.kill(os.getpid(), signal.SIGUSR1), print('is told', flush=True))"
    run = make(f"import atexit, os, signal\natexit.register(lambda: {last})\n{WARM_UP}")
    code, said = run("--device", f"null:{processes}")
    assert code == 0 and "is told" in said and "saving" not in said, said
