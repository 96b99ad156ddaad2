"""hwal.start() and the program around the script. A runtime of the tests stands in for a backend's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hwal
from hwal import registry, starting, worker
from hwal.errors import DeviceError, HwalError, PlanError, ScriptError, UsageError, VersionError, WorldError
from hwal.launch.place import read_plan, take_place
from hwal.runtime import Runtime
from hwal.values import Decision, Process, World, Wrap

from .launch.plans import plan

ROOT = Path(__file__).parent.parent
SOURCES = os.pathsep.join((str(ROOT), str(ROOT / "backends"), str(Path(__file__).parent / "launch" / "plugin")))


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A backend named null whose runtime needs no framework."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "launch" / "plugin"))
    monkeypatch.setattr(registry, "BUILT_IN", {"cpu": "hwal_cpu:backend", "null": "hwal_standin:backend"})
    monkeypatch.setattr(worker, "_started", [])
    monkeypatch.setenv("HWAL_DEVICE", "null")
    monkeypatch.setattr(sys, "argv", ["folder/train.py"])
    monkeypatch.chdir(tmp_path)
    for name in ("torch", "keras", "tensorflow", "tf_keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    threads = os.environ.pop("OMP_NUM_THREADS", None)
    yield  # type: ignore[misc]
    if affinity is not None:
        os.sched_setaffinity(0, affinity)
    os.environ.pop("OMP_NUM_THREADS", None)
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = threads


def start(framework: Any = None) -> Runtime:
    runtime: Runtime = hwal.start(framework)
    return runtime


# hwal.start()


def test_plain_python_is_a_world_of_one_and_says_what_it_chose(capsys: pytest.CaptureFixture[str]) -> None:
    runtime = start()
    assert (runtime.rank, runtime.world_size, runtime.is_main) == (0, 1, True)
    assert runtime.run_dir == Path("runs/train") and runtime.run_dir.is_dir()
    told = capsys.readouterr().err
    assert "asked for by --device null" in told and "one process; framework torch" in told


def test_hwal_trains_plan_is_used_and_not_told_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HWAL_PLAN", plan(threads=3).to_json())
    monkeypatch.setenv("HWAL_RUN_DIR", str(tmp_path / "run"))
    runtime = start("torch")
    assert runtime.job.plan == plan(threads=3) and runtime.run_dir == tmp_path / "run"
    assert capsys.readouterr().err == ""


def test_plain_python_takes_an_fsdp_config_file_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    keys = {"distributed_type": "FSDP", "num_processes": 4, "mixed_precision": "no"}
    inner = {"sharding_strategy": 3, "activation_checkpointing": True, "min_num_params": 500}
    (tmp_path / "f.json").write_text(json.dumps({**keys, "fsdp_config": inner}))
    monkeypatch.setenv("HWAL_STRATEGY", "f.json")
    job = start().job
    assert (job.plan.strategy.value, job.plan.precision.value, job.plan.wrap) == ("single", "fp32", Wrap(min_params=500))
    assert job.settings.grad_checkpoint and job.settings.strategy == "ddp"
    assert "note: 1 process(es) here, not the 4 of f.json: hwal train starts as many\n" in capsys.readouterr().err


def test_the_plan_may_be_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan().to_json())
    assert read_plan({"HWAL_PLAN": str(tmp_path / "plan.json")}) == plan()
    with pytest.raises(PlanError, match="cannot be read"):
        read_plan({"HWAL_PLAN": str(tmp_path / "none.json")})
    with pytest.raises(UsageError):
        read_plan({"HWAL_PLAN": "{"})
    assert read_plan({}) is None


def test_a_world_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWAL_PROCESSES", "2")
    with pytest.raises(WorldError, match="2 processes were asked for, but this one is in a world of 1"):
        start()
    monkeypatch.setenv("HWAL_PROCESSES", "1")
    monkeypatch.setenv("HWAL_PLAN", plan(2).to_json())
    with pytest.raises(WorldError, match="plan has 2"):
        start()


def test_the_framework_is_what_the_call_the_plan_or_the_imports_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert starting.decide(None, {}).value == "torch"
    assert starting.decide(None, {"tensorflow": 1, "keras": 1}) == Decision("keras", "the script has imported keras")
    assert starting.decide("keras", {"torch": 1}).value == "keras"
    with pytest.raises(ScriptError, match="both torch and tensorflow"):
        starting.decide(None, {"torch": 1, "tensorflow": 1})
    with pytest.raises(UsageError, match="unknown framework"):
        start("torchh")
    monkeypatch.setenv("HWAL_PLAN", plan().to_json())
    with pytest.raises(ScriptError, match="planned for torch"):
        start("keras")


def test_what_the_backend_cannot_do_is_named() -> None:
    with pytest.raises(VersionError, match="no keras runtime for null"):
        start("keras")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import hwal_standin

    monkeypatch.setattr(hwal_standin.StandIn, "runtimes", {"torch": "hwal_standin.needy:Runtime"})
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    monkeypatch.setenv("HWAL_PLAN", plan().to_json())
    with pytest.raises(VersionError) as caught:
        start()
    assert (caught.value.what, caught.value.hint) == ("torch is not installed", "pip install 'hwal[torch]'")


def test_start_twice_is_an_error_unless_the_first_has_ended() -> None:
    first = start()
    with pytest.raises(ScriptError, match="called twice"):
        start()
    first.end()
    assert start() is not first


def test_devices_that_are_not_there_fail_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWAL_DEVICE", "null:9")
    with pytest.raises(DeviceError, match="no device '9'"):
        start()
    monkeypatch.setenv("HWAL_DEVICE", "nul")
    with pytest.raises(UsageError, match="unknown device"):
        start()


def test_hwal_topology_stands_in_for_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HWAL_TOPOLOGY", str(tmp_path / "machine.json"))
    document = {
        "host": {"name": "paper", "system": "linux", "machine": "x86_64"},
        "probes": [{"backend": "null", "state": "ready", "reason": "on paper"}],
        "devices": [{"backend": "null", "index": 5, "name": "paper device"}],
        "links": [],
    }
    (tmp_path / "machine.json").write_text(json.dumps(document))
    import hwal_standin

    with pytest.raises(DeviceError, match=r"1 of 1 null device\(s\) are not here") as caught:
        start()
    assert caught.value.where == f"HWAL_TOPOLOGY={tmp_path / 'machine.json'}"
    monkeypatch.setattr(hwal_standin.StandIn, "caps", replace(hwal_standin.StandIn.caps, imaginary=True))
    assert start().job.hardware.name == "paper device"


def test_cores_and_threads_are_taken() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("no affinity on this system")
    core = min(os.sched_getaffinity(0))
    environ: dict[str, str] = {}
    take_place(Process(0, (0,), (core,), 3), environ)
    assert os.sched_getaffinity(0) == {core} and environ == {"OMP_NUM_THREADS": "3"}
    with pytest.raises(PlanError, match="cannot run on the CPU cores"):
        take_place(Process(0, (0,), (100_000,), 3), environ)


def test_a_spawned_child_is_told_about_its_main_guard(tmp_path: Path) -> None:
    (tmp_path / "spawn.py").write_text(
        STARTS + "import multiprocessing as mp\n"
        "def f(): pass\n"
        "c = mp.get_context('spawn').Process(target=f)\nc.start()\nc.join()\n"
    )
    done = run_python("spawn.py", cwd=tmp_path, env={"HWAL_DEVICE": "null"})
    assert "was called in a child process" in done.stderr and '__name__ == "__main__"' in done.stderr


# the program around the script


def run_python(*argv: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": SOURCES, **(env or {})}
    return subprocess.run(
        [sys.executable, *argv], cwd=cwd, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def run_worker(script: str, cwd: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    (cwd / "folder").mkdir(exist_ok=True)
    (cwd / "folder" / "s.py").write_text(script)
    return run_python("-m", "hwal.worker", "folder/s.py", *argv, cwd=cwd, env={"HWAL_PLAN": plan().to_json(), **env})


def test_the_script_sees_what_python_would_show_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "beside.py").write_text("x = 1")
    script = "import sys, os, beside\nprint(__name__, sys.argv, sys.path[0], os.environ['OMP_NUM_THREADS'], __file__)"
    done = run_worker(script, tmp_path, "--lr", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == f"__main__ ['folder/s.py', '--lr', '1'] {tmp_path / 'folder'} 1 folder/s.py"


def test_a_script_that_never_starts_is_told_what_it_misses(tmp_path: Path) -> None:
    done = run_worker("print('ran')", tmp_path)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "never called hwal.start()" in done.stderr and "with hwal.start() as rt" in done.stderr


@pytest.mark.parametrize(
    ("script", "code", "shown"),
    [
        ("import sys; sys.exit(0)", 0, ""),
        ("import sys; sys.exit(3)", 1, "s.py exited with code 3"),
        ("import argparse; argparse.ArgumentParser().parse_args(['-x'])", 1, "s.py exited with code 2"),
        ("import sys; sys.exit('a reason')", 1, "a reason"),
        ("raise KeyboardInterrupt", 1, "interrupted"),
        (
            "from hwal.errors import UsageError; raise UsageError('wrong', hint='right')",
            2,
            "hwal: error: wrong\n  try:   right",
        ),
        ("from hwal.errors import Preempted; raise Preempted", 75, ""),
    ],
)
def test_exit_codes(tmp_path: Path, script: str, code: int, shown: str) -> None:
    done = run_worker(script, tmp_path)
    assert done.returncode == code, done.stderr
    assert shown in done.stderr and "Traceback" not in done.stderr


def test_an_error_of_the_scripts_shows_its_own_frames_only(tmp_path: Path) -> None:
    script = "def f():\n    try:\n        int('x')\n    except ValueError as e:\n        raise KeyError('k') from e\nf()\n"
    done = run_worker(script, tmp_path)
    assert done.returncode == 1
    assert "direct cause" in done.stderr and "KeyError: 'k'" in done.stderr and "line 6" in done.stderr
    assert "worker.py" not in done.stderr and "runpy" not in done.stderr


def test_an_error_of_hwals_own_code_keeps_its_frames(tmp_path: Path) -> None:
    done = run_worker("from hwal.launch.world import port_of\nport_of(None)", tmp_path)
    assert done.returncode == 1 and "launch/world.py" in done.stderr and "runpy" not in done.stderr


def test_a_crash_of_native_code_leaves_its_line(tmp_path: Path) -> None:
    done = run_worker("import ctypes\nctypes.string_at(0)", tmp_path)
    assert done.returncode < 0 and 'folder/s.py", line 2' in done.stderr


def test_modules_run_too_and_a_missing_script_is_named(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("import sys; print(__name__, sys.argv[1:])")
    done = run_python("-m", "hwal.worker", "-m", "mod", "a", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "__main__ ['a']\n"), done.stderr
    done = run_python("-m", "hwal.worker", "none.py", cwd=tmp_path)
    assert done.returncode == 2 and "there is no script none.py" in done.stderr
    assert run_python("-m", "hwal.worker", cwd=tmp_path).returncode == 2


STARTS = "import sys, hwal, hwal.registry as r\nr.BUILT_IN = {'null': 'hwal_standin:backend'}\nrt = hwal.start()\n"


def test_a_runtime_that_the_script_forgets_is_ended_once(tmp_path: Path) -> None:
    run_dir = {"HWAL_RUN_DIR": str(tmp_path / "run")}
    assert run_worker(STARTS, tmp_path, **run_dir).stdout == "end None\n"
    done = run_worker(STARTS + "raise ValueError('planted')", tmp_path, **run_dir)
    assert done.stdout == "end planted\n" and done.returncode == 1 and "go on with" not in done.stderr
    assert run_worker(STARTS + "rt.end()", tmp_path, **run_dir).stdout == "end None\n"
    for way_out in ("pass", "sys.exit(0)"):
        done = run_worker(f"import hwal\n{STARTS}with rt: {way_out}", tmp_path, **run_dir)
        assert done.stdout.startswith("end ") and done.stdout.count("end ") == 1 and done.returncode == 0
        assert "note: no step was done: no batch came to one" in done.stderr


@pytest.mark.parametrize("ending", ["raise ValueError('planted')", "sys.exit(3)"])
def test_a_failure_after_a_checkpoint_says_what_there_is_to_go_on_from(tmp_path: Path, ending: str) -> None:
    (tmp_path / "run" / "checkpoints" / "step-00000004").mkdir(parents=True)
    done = run_worker(STARTS + ending, tmp_path, HWAL_RUN_DIR="run")
    there = "hwal: the last finished checkpoint is whole: go on with "
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == f"{there}--resume run", done.stderr
    if "raise" in ending:
        done = run_python("folder/s.py", cwd=tmp_path, env={"HWAL_DEVICE": "null", "HWAL_RUN_DIR": "run"})
        assert done.returncode == 1 and done.stderr.splitlines()[-1] == f"{there}HWAL_RESUME=run", done.stderr


def test_plain_python_ends_it_at_exit(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(STARTS)
    done = run_python("s.py", cwd=tmp_path, env={"HWAL_DEVICE": "null"})
    assert done.stdout == "end None\n", done.stderr
    done = run_python("s.py", cwd=tmp_path, env={"HWAL_PLAN": "x"})
    assert done.returncode == 1 and done.stderr == (
        "hwal: error: the plan cannot be read: No such file or directory\n"
        "  where: HWAL_PLAN=x\n"
        "  try:   HWAL_PLAN=FILE, the plan.json of a run; without the variable the plan is made here\n"
    )


def test_hwal_errors_of_start_reach_the_terminal_without_a_traceback(tmp_path: Path) -> None:
    done = run_worker(STARTS, tmp_path, HWAL_PROCESSES="4")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("hwal: error: 4 processes were asked for, but this one is in a world of 1")
    assert HwalError.exit_code == 1


MISTAKE = """
import hwal

def train(rt):
    next(rt.epochs())

def main():
    with hwal.start() as rt:
        train(rt)

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [(), ("-m", "hwal", "train")], ids=["python", "hwal train"])
def test_a_mistake_of_the_script_names_its_line_and_shows_no_traceback(tmp_path: Path, command: tuple[str, ...]) -> None:
    script = tmp_path / "script.py"
    script.write_text(MISTAKE, encoding="utf-8")
    roots = os.pathsep.join(str(ROOT / folder) for folder in (".", "backends"))
    environ = {**os.environ, "PYTHONPATH": roots, "HWAL_OUT": str(tmp_path / "run")}
    done = subprocess.run([sys.executable, *command, str(script)], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-3:] == [
        "hwal: error: rt.epochs() needs an end",
        "  line:  script.py:5, in train",
        "  try:   rt.epochs(3), or rt.epochs(steps=1000)",
    ]


@pytest.mark.parametrize(
    ("steps", "lost"), [(0, "nothing is lost"), (7, "what was trained is lost, unless the script has saved it")]
)
def test_a_signal_after_a_run_that_was_not_saved(monkeypatch: pytest.MonkeyPatch, steps: int, lost: str) -> None:
    monkeypatch.setattr(worker, "_started", [SimpleNamespace(steps_done=steps)])
    code, line = worker._out_of_run("SIGTERM", "after the last step", World(), {})
    assert (code, line) == (1, f"hwal: SIGTERM after the last step: {lost}, and there is no checkpoint to go on from")
