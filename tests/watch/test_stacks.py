"""The stack of another process, whatever it is at."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwal.watch.spot import Library
from hwal.watch.stacks import children_of, how_it_ended, kill, stack_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")
HOLDS = """
import itertools
from hwal.watch.stacks import Stacks
stacks = Stacks()
def hold():
    print(stacks.descriptor, flush=True)
    sum(itertools.repeat(0))
hold()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A process that never lets go of its interpreter's lock: its number, and where it leaves its stack."""
    script = tmp_path / "holds.py"
    script.write_text(HOLDS, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    yield process.pid, int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_process_that_holds_its_lock_leaves_its_stack(holder: tuple[int, int]) -> None:
    for _ in range(2):  # the second time only what is new
        text = stack_of(*holder)
        assert text is not None and text.count("in hold") == 1
        assert re.fullmatch(r"holds.py:\d, in hold", Library().dumped(text) or "")


def test_a_process_without_the_handler_is_left_alone() -> None:
    process = subprocess.Popen(["sleep", "100"])
    try:
        assert stack_of(process.pid, 2) is None
        assert process.poll() is None
        assert children_of(os.getpid()).count(process.pid) == 1
    finally:
        kill(process.pid)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os._exit(0)", "ended with exit code 0 before its script was done"),
        ("import os; os._exit(3)", "ended with exit code 3, and no word"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    ],
)
def test_how_a_process_ended_that_nobody_has_asked(code: str, words: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", code])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent has not been told
    assert how_it_ended(process.pid) == words
    process.wait()
    assert how_it_ended(process.pid) == "was killed, crashed or called os._exit()"
