"""What the system knows of a thread that is watched, and of a process that was stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hwal.watch.spot import Signs
from hwal.watch.stacks import is_stopped
from hwal.watch.watched import Watched


@contextmanager
def watched(work: Callable[[threading.Event], None]) -> Iterator[tuple[Watched, threading.Thread, threading.Event]]:
    """A thread at that work until its event is set, and what watches it."""
    made: list[Watched] = []
    ready, done = threading.Event(), threading.Event()

    def run() -> None:
        made.append(Watched(Signs()))
        ready.set()
        work(done)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield made[0], thread, done
    finally:
        done.set()
        thread.join()
        made[0].close()


def waits(done: threading.Event) -> None:
    done.wait()


def computes(done: threading.Event) -> None:
    while not done.is_set():
        sum(range(1000))


class Unnamed:
    num_workers = 0

    @property
    def dataset(self) -> object:
        raise RuntimeError("planted")


def test_a_loader_of_the_scripts_own_is_named_whatever_it_raises() -> None:
    with watched(waits) as (thread, _, _):
        assert thread.source(Unnamed()) == "Unnamed gave nothing"
        assert thread.source([1]) == "list gave nothing"


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="the system does not tell")
def test_the_processor_time_of_a_thread_grows_while_it_computes() -> None:
    with watched(computes) as (thread, _, _):
        before = thread.seconds()
        deadline = time.monotonic() + 20
        while thread.seconds() < before + 0.02:
            assert time.monotonic() < deadline
    with watched(waits) as (thread, _, _):
        assert thread.seconds() < 1.0


def test_a_thread_that_is_gone_is_nowhere_and_takes_no_time() -> None:
    """hwal.start() in a notebook's worker thread: asking the C library for its clock could crash."""
    with watched(waits) as (thread, running, done):
        assert "test_watched.py" in thread.spot().line
        done.set()
        running.join()
        assert thread.spot().line == "no Python code"
        deadline = time.monotonic() + 20
        while thread.seconds() != 0.0:  # the system's thread ends a moment after Python's
            assert time.monotonic() < deadline


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_what_a_process_writes_is_seen(tmp_path: Path) -> None:
    with watched(waits) as (thread, _, _):
        before = thread.bytes()
        (tmp_path / "file").write_bytes(b"x" * 100_000)
        assert 100_000 <= thread.bytes() - before < 200_000


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_process_that_was_stopped_is_told_from_one_that_waits() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert is_stopped(process.pid)
        os.kill(process.pid, signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        assert not is_stopped(process.pid)
    finally:
        process.kill()
        process.wait()
    assert not is_stopped(process.pid), "there is none any more"
