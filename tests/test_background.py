"""One job beside the main thread."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

from hwal.background import Background


def test_a_job_runs_beside_the_caller_and_the_next_waits_for_it() -> None:
    background, gate, done = Background(), threading.Event(), list[int]()

    def first() -> None:
        gate.wait()
        done.append(1)

    background.start(first)
    assert done == [] and not background.failed
    threading.Timer(0.05, gate.set).start()
    background.start(lambda: done.append(2))
    background.wait()
    assert done == [1, 2]
    background.wait()


def test_an_error_comes_out_once_where_the_main_thread_next_waits() -> None:
    background = Background()

    def fail() -> None:
        raise OSError("no space")

    background.start(fail)
    while not background.failed:
        pass
    with pytest.raises(OSError, match="no space"):
        background.start(lambda: None)
    assert not background.failed
    background.wait()


def test_the_interpreter_ends_after_the_job() -> None:
    code = """
        import time
        from hwal.background import Background

        Background().start(lambda: (time.sleep(0.3), print("written")))
        raise SystemExit(3)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("written\n", 3)


def test_a_thread_that_cannot_be_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for its stack may be lacking: that is the error that counts."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    background = Background()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        background.start(lambda: None)
    background.wait()
