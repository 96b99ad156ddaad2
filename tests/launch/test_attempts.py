"""The parent of a search: when a run that failed is started again, and with what words."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hwal.errors import UsageError
from hwal.host import RecordedHost, Recording
from hwal.launch.attempts import Attempts, of_script, searches
from hwal.launch.outcome import Exit, Outcome
from hwal.micro_batch import Tried, read_tries, write_tries
from hwal.values import Command

FOLDER = "/sys/fs/cgroup/memory"
SHORT = Outcome(1, 2, "null:1", 1.0, 2.0, 1, "out of memory: 1.0 GiB more could not be had")
SILENT = Outcome(0, 2, "null:0", 1.0)


class Counted(RecordedHost):
    """A machine whose kernel has killed `count` times."""

    count = 0

    def read(self, path: str) -> str | None:
        return {
            "/proc/self/cgroup": "4:memory:/\n",
            f"{FOLDER}/memory.oom_control": f"oom_kill {self.count}\n",
            f"{FOLDER}/memory.failcnt": f"{self.count}\n",
            f"{FOLDER}/memory.limit_in_bytes": f"{4 << 30}\n",
        }.get(path)


@pytest.fixture
def host() -> Counted:
    return Counted(Recording(files={}))


def test_a_rank_that_left_word_is_started_again(tmp_path: Path, host: Counted) -> None:
    starts = Attempts(tmp_path, host)
    command = Command(("python",), {})
    for rows in (8, 4, 2):
        starts.begin()
        tried = read_tries(tmp_path).get("a", Tried("a", 8))
        write_tries(tmp_path, {"a": tried.failed(rows)})
        told = starts.again([Exit(1, 2, 1, 2)], {1: SHORT})
        assert told == f"micro-batch {rows} did not fit (out of memory: 1.0 GiB more could not be had); trying {rows // 2}"
    assert starts.command(command).env == {"HWAL_ATTEMPT": "3"}
    starts.begin()
    write_tries(tmp_path, {"a": read_tries(tmp_path)["a"].failed(1)})
    assert starts.again([Exit(1, 2, 1, 2)], {1: SHORT}) is None


def test_a_rank_that_the_kernel_killed_is_started_again(tmp_path: Path, host: Counted) -> None:
    starts = Attempts(tmp_path, host)
    starts.begin()
    write_tries(tmp_path, {"a": Tried("a", 8, trying=8)})
    host.count = 1
    assert starts.again([Exit(0, 2, -9, 2)], {0: SILENT}) == (
        "micro-batch 8 did not fit (killed by the kernel for memory: its cgroup's limit is 4.0 GiB "
        f"({FOLDER}/memory.limit_in_bytes)); trying 4"
    )
    assert read_tries(tmp_path)["a"] == Tried("a", 8, fails=8)


@pytest.mark.parametrize("kill", [True, False])
def test_others_failures_are_no_reason(tmp_path: Path, host: Counted, kill: bool) -> None:
    """Someone's SIGKILL, one of the kernel's before training has begun, and an error of the script's."""
    starts = Attempts(tmp_path, host)
    write_tries(tmp_path, {"a": Tried("a", 8, trying=8)})  # of a run before
    starts.begin()
    assert read_tries(tmp_path)["a"].trying is None
    host.count = int(kill)
    if not kill:
        write_tries(tmp_path, {"a": Tried("a", 8, trying=8)})
    assert starts.again([Exit(0, 2, -9, 2)], {0: SILENT}) is None
    assert starts.again([Exit(0, 2, 1, 2)], {0: replace(SILENT, error="ValueError", exit=1)}) is None
    assert starts.command(Command(("python",), {})).env == {}


def test_what_is_searched_for() -> None:
    command = Command(("python",), {})
    assert searches(command, {"HWAL_MICRO_BATCH": "auto"})
    assert not searches(command, {"HWAL_MICRO_BATCH": "8"}) and not searches(command, {})


def test_a_script_of_plain_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    script = tmp_path / "train.py"
    script.touch()
    (command,) = of_script(str(script), ["--lr", "1"], tmp_path / "run").commands
    assert command.argv == (sys.executable, "-m", "hwal.worker", str(script), "--lr", "1")
    assert command.env == {"HWAL_RUN_DIR": str(tmp_path / "run"), "HWAL_PROCESSES": "1"}
    with pytest.raises(UsageError) as caught:
        of_script("-c", [], tmp_path)
    assert str(caught.value).splitlines() == [
        "the micro-batch cannot be searched for here",
        "  where: HWAL_MICRO_BATCH=auto",
        "  why:   a program is started again where it does not fit, and this one stands in no file",
        "  try:   a script in a file, or HWAL_MICRO_BATCH=N",
    ]
