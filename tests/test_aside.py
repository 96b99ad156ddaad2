"""Folders written aside: what killed processes leave behind, here and on other machines, and kills at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hwal import aside
from hwal.aside import alive, replace_folder
from hwal.checkpoint import Checkpoints
from tests.stores import Told, dead_pid, names, write


@pytest.fixture
def store(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints")


def beside(store: Checkpoints, step: int, pid: int, kind: str, place: str | None = None) -> Path:
    """The name of what a process left, of this machine unless another `place` is given."""
    return store.folder / f".{store.path(step).name}.{place or aside.place()}-{pid}.{kind}"


ELSEWHERE = "0123abcd"


def test_what_a_dead_process_left_is_cleared_and_what_it_was_replacing_put_back(store: Checkpoints) -> None:
    write(store, 1)
    pid = dead_pid()
    beside(store, 2, pid, "tmp").mkdir()
    write(store, 3, "the old three")
    store.path(3).rename(beside(store, 3, pid, "old"))
    write(store, 4)
    beside(store, 4, pid, "old").mkdir()
    living = beside(store, 5, os.getppid(), "tmp")
    living.mkdir()
    found = store.newest(Told())
    assert found is not None and found[0] == store.path(4)
    assert names(store) == [living.name, "step-00000001", "step-00000003", "step-00000004"]
    assert (store.path(3) / "weights").read_text() == "the old three"


def test_what_another_machine_writes_stays_until_nothing_has_changed_there_for_long(store: Checkpoints) -> None:
    """Its processes cannot be asked whether they live, and may well have numbers that are free here."""
    write(store, 1)
    pid = dead_pid()
    writing, left = (beside(store, step, pid, "tmp", ELSEWHERE) for step in (2, 3))
    before = time.time() - aside.IDLE - 60
    for folder in (writing, left):
        folder.mkdir()
        (folder / "weights").write_text("half")
        os.utime(folder / "weights", (before, before))
        os.utime(folder, (before, before))
    (writing / "weights").write_text("half and")
    unnamed = store.folder / f".step-00000004.{pid}.tmp"  # as earlier versions called them
    unnamed.mkdir()
    assert store.newest(Told()) is not None
    assert names(store) == sorted([writing.name, unnamed.name, "step-00000001"])


def test_what_another_machine_was_replacing_is_put_back(store: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """A living process is between its two renames for an instant: what still is after a while was killed."""
    waits: list[float] = []
    write(store, 1)
    write(store, 2)
    store.path(1).rename(beside(store, 1, 1, "old", ELSEWHERE))
    store.path(2).rename(beside(store, 2, 1, "old", ELSEWHERE))

    def wait(seconds: float) -> None:
        if not waits:  # the living one comes to its second rename
            write(Checkpoints(store.folder / "new"), 2).rename(store.path(2))
        waits.append(seconds)

    monkeypatch.setattr(aside.time, "sleep", wait)
    found = store.newest(Told())
    assert found is not None and found[0] == store.path(2)
    assert store.path(1).exists() and len(waits) in (1, 2)


def test_next_to_a_path_of_the_users_own_only_its_leftovers_are_cleared(store: Checkpoints, tmp_path: Path) -> None:
    pid = dead_pid()
    left = {name: tmp_path / f".{name}.{aside.place()}-{pid}.tmp" for name in ("best", "other")}
    for path in left.values():
        path.mkdir()
    write(store, 1, target=tmp_path / "best")
    assert sorted(path.name for path in tmp_path.iterdir()) == [left["other"].name, "best"]


def test_replacing_is_two_renames_and_the_old_one_waits_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped between the two renames (as a kill would), the old folder is still there for tidy()."""
    store = Checkpoints(tmp_path)
    write(store, 1, "old")
    (tmp_path / "new").mkdir()
    real = Path.rename
    calls: list[Path] = []

    def rename(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", rename)
        replace_folder(tmp_path / "new", store.path(1))
    assert not store.path(1).exists()
    assert store.newest(Told()) is not None
    assert (store.path(1) / "weights").read_text() == "old"


WRITER = """
    import sys
    from pathlib import Path
    from hwal.checkpoint import Checkpoints, Manifest, Position

    store = Checkpoints(Path(sys.argv[1]), "last:2")
    begin = int(sys.argv[2])
    for count in range(begin, 10**6):
        step = begin + (count - begin) // 2  # every second write replaces the checkpoint before it
        position = Position(0, 0, 0, step, step, step, step, 1)
        with store.writing(store.path(step), lambda files: Manifest(position, files, "torch")) as folder:
            for part in range(3):
                (folder / f"part-{part}").write_bytes(bytes([step % 256]) * 30_000)
        print(step, flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_never_loses_the_checkpoint_before(tmp_path: Path) -> None:
    generator = random.Random(20)
    store = Checkpoints(tmp_path / "checkpoints", "last:2")
    log = tmp_path / "log"
    done = 0
    for _ in range(25):
        with log.open("w") as output:
            command = [sys.executable, "-c", textwrap.dedent(WRITER), str(store.folder), str(done + 1)]
            process = subprocess.Popen(command, stdout=output, cwd=Path(__file__).parents[1])
        deadline = time.monotonic() + 30
        while not log.read_text() and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(generator.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        announced = int(log.read_text().split()[-1])
        assert announced > done
        found = store.newest(Told())
        assert found is not None
        assert found[1].position.step in (announced, announced + 1)
        assert not [name for name in names(store) if name.startswith(".")]
        done = found[1].position.step


def test_alive_knows_the_living_from_the_dead() -> None:
    assert alive(os.getpid()) and alive(os.getppid())
    assert not alive(dead_pid())
    assert alive(1 << 80), "unknown counts as alive: nothing of another's is removed"


def test_a_file_holds_a_name_that_is_no_text(tmp_path: Path) -> None:
    """As JSON spells it, so that it is read back."""
    name = b"a\xffb".decode("utf-8", "surrogateescape")
    aside.write_file(tmp_path / "f.json", json.dumps({"script": f"{name} ü"}, ensure_ascii=False))
    assert json.loads((tmp_path / "f.json").read_text(encoding="utf-8")) == {"script": f"{name} ü"}
