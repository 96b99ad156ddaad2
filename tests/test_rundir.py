from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from hwal.env import Settings
from hwal.errors import OutputError, UsageError
from hwal.launch.folder import drop_empty, hold
from hwal.rundir import choose_run_dir, make_run_dir, refuse_second
from hwal.values import World


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def choose(stem: str = "train", world: World | None = None, environ: dict[str, str] | None = None, **settings: str) -> Path:
    return choose_run_dir(Settings(**settings), stem, world or World(), environ or {})  # type: ignore[arg-type]


def test_the_first_free_name() -> None:
    assert choose() == Path("runs/train")
    assert make_run_dir(Path("runs/train"), new=True)
    assert choose() == Path("runs/train-2")  # empty as yet: a run that has just begun
    assert not make_run_dir(Path("runs/train"), new=True)  # two runs chose it, one of them has it
    Path("runs/train-2").write_text("a file in its place")
    assert choose() == Path("runs/train-3")
    drop_empty(Path("runs/train"))
    assert choose() == Path("runs/train")
    (Path("runs/train")).mkdir()
    (Path("runs/train") / "metrics.jsonl").write_text("")
    drop_empty(Path("runs/train"))
    assert choose() == Path("runs/train-3")


def test_what_is_said_counts() -> None:
    Path("there").mkdir()
    assert choose(out="here", resume="there") == Path("here")
    assert choose(resume="there") == Path("there")
    assert choose(environ={"HWAL_RUN_DIR": "x"}, out="here") == Path("x")
    assert choose("../../etc/pass wd") == Path("runs/etc-pass-wd")
    assert choose("..") == Path("runs/run")


def test_out_never_mixes_two_runs() -> None:
    for run in ("a", "b"):
        Path(run, "checkpoints", "step-00000003").mkdir(parents=True)
        Path(run, "checkpoints", "step-00000003", "hwal.json").write_text("{}")
    assert choose(out="a", resume="a") == choose(out="a", resume="a/checkpoints/step-00000003") == Path("a")
    for resume in ("b", "b/checkpoints/step-00000003", None):
        with pytest.raises(UsageError, match="already holds a run"):
            choose(out="a", **({"resume": resume} if resume else {}))


def test_a_start_that_came_to_no_step_is_no_run() -> None:
    for left in ("a/.lock", "a/plan.json", "a/run.json", "a/metrics.jsonl", "a/logs/rank-1.log", "a/checkpoints/.step-1.7.tmp"):
        Path(left).parent.mkdir(parents=True, exist_ok=True)
        Path(left).touch()
    assert choose(out="a") == choose(out="a", resume="a") == choose(resume="a") == Path("a")
    Path("a/metrics.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="--resume goes on with it, from the start, since it holds no checkpoint; or choose"):
        choose(out="a")


def test_the_runs_own_folder_need_not_be_there_to_go_on_with() -> None:
    """A requeued job may have been stopped before it had made it; another run's folder is a mistake."""
    assert choose(out="a", resume="a") == choose(out="a", resume="./b/../a") == Path("a")
    for out in ({}, {"out": "b"}):
        with pytest.raises(UsageError, match=r"there is no run at a\n.*\n.*--out a --resume begins one"):
            choose(resume="a", **out)


def test_a_single_checkpoint_begins_a_run_of_its_own() -> None:
    checkpoint = Path("runs/train/checkpoints/step-00000003")
    checkpoint.mkdir(parents=True)
    (checkpoint / "hwal.json").write_text("{}")
    assert choose(resume=str(checkpoint)) == Path("runs/train-2")
    assert choose(resume="runs/train") == Path("runs/train")


def test_ranks_of_a_foreign_world_agree_without_asking_the_disk() -> None:
    environ = {"TORCHELASTIC_RUN_ID": "my job/1"}
    folders = set()
    for rank in range(2):
        world = World(rank, 2, rank, 2, "torchrun", "127.0.0.1", 1234)
        folders.add(choose(world=world, environ=environ))
        make_run_dir(Path("runs/train-my-job-1"))
        Path("runs/train-my-job-1/metrics.jsonl").write_text("")  # the first rank is quicker
    assert folders == {Path("runs/train-my-job-1")}


def full(self: Path, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_that_cannot_be_made_or_written(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        make_run_dir(Path("file"))
    with pytest.raises(UsageError, match="cannot be written"):
        make_run_dir(Path("file/below"))
    with pytest.raises(UsageError):
        make_run_dir(Path("/proc/hwal"))
    make_run_dir(Path("a/b"))
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputError, match="No space left on device"):
        make_run_dir(Path("a/b"))
    assert list(Path("a/b").iterdir()) == []


def test_a_requeued_job_is_told_what_its_script_has_to_say(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "checkpoints" / "step-00000001").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"already holds a run") as raised:
        refuse_second(out, {"SLURM_RESTART_COUNT": "1"})
    assert f"${{SLURM_RESTART_COUNT:+--resume {out}}}" in str(raised.value)
    with pytest.raises(UsageError, match=r"--resume goes on with it; or choose another --out"):
        refuse_second(out, {})


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX locks")
def test_a_folder_is_one_runs_at_a_time(tmp_path: Path) -> None:
    """Also across exec; it is free when that run has ended, and what it leaves is taken away with an empty folder."""
    program = "import os, sys; from pathlib import Path; from hwal.launch.folder import hold; hold(Path(sys.argv[1])); "
    becomes = "os.execv(sys.executable, [sys.executable, '-c', 'print(1, flush=True); input()'])"
    argv = [sys.executable, "-c", program + becomes, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        with pytest.raises(UsageError, match="another run is at work in"):
            hold(tmp_path)
        holder.communicate(b"\n", timeout=30)
    hold(tmp_path)
    drop_empty(tmp_path)
    assert not tmp_path.exists()
