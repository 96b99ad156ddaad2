"""torchrun's agent as hwal has it: what it says of a failure after which the world is started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.multiprocessing import api

from hwal import preempt
from hwal.cgroup import Kills
from hwal.env import STATE_DIR
from hwal.host import RecordedHost, Recording
from hwal.launch.outcome import Outcome
from hwal_torch import agent

SLEEPS = "import time; time.sleep(1000)"
GROUP = "/sys/fs/cgroup/memory"
COUNTED = {
    "/proc/self/cgroup": "4:memory:/\n",
    f"{GROUP}/memory.oom_control": "oom_kill 1\n",
    f"{GROUP}/memory.failcnt": "1\n",
    f"{GROUP}/memory.limit_in_bytes": f"{4 << 30}\n",
}


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_ranks_that_have_ended_are_not_ended_again() -> None:
    """torch lists them still; to signal one that is gone was taken for ranks that could not be started."""
    ended, runs = (subprocess.Popen([sys.executable, "-c", code], start_new_session=True) for code in ("", SLEEPS))
    ended.wait()
    one = agent.Agent.__new__(agent.Agent)
    handlers = {rank: SimpleNamespace(proc=proc) for rank, proc in enumerate((ended, runs))}
    one._pcontext = SimpleNamespace(subprocess_handlers=handlers)  # type: ignore[assignment]
    one._end_ranks()
    assert runs.wait(20) == -9


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (
            Kills(0, None, 0),
            f"was killed by the kernel for memory: its cgroup's limit is 4.0 GiB ({GROUP}/memory.limit_in_bytes)",
        ),
        (Kills(1, None, 1), "was killed by SIGKILL: the kernel's out-of-memory killer does this (see dmesg), or someone did"),
    ],
)
def test_a_killed_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Kills, words: str) -> None:
    monkeypatch.setenv(STATE_DIR, str(tmp_path))
    monkeypatch.setattr(agent, "Host", lambda: RecordedHost(Recording(files=COUNTED)))
    Outcome(1, 12, "cpu:0", 1.0).write(tmp_path)
    one = agent.Agent.__new__(agent.Agent)
    one._kills = before
    died = SimpleNamespace(pid=12, exitcode=-9, timestamp=2)
    said = one._why(RunResult(WorkerState.FAILED, failures={1: died}), 2)  # type: ignore[dict-item]
    assert said == f"hwal: rank 1 of 2 on cpu:0 {words}"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_launchers_signal_leaves_the_gathering_to_other_machines() -> None:
    """torch keeps a gathering open for the others at this exception alone."""
    before = {number: signal.getsignal(number) for number in (*preempt.numbers(), preempt.END)}
    try:
        preempt.leave_to_launcher(agent.end)
        signal.raise_signal(signal.SIGTERM)  # a scheduler's, to all processes of the job
        with pytest.raises(api.SignalException):
            signal.raise_signal(preempt.END)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
