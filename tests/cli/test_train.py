"""`hwal train`: what its flags make of a run, seen in what --dry-run prints."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hwal.cli.flags import SETTING_GROUPS, read, recipe_arguments, spellings
from hwal.env import SETTINGS
from hwal.provenance import remember
from hwal.values import Decision, Launch, Plan, Wrap
from tests.cli.paper import Result

Hwal = Callable[..., Result]

FLAGS = """
-h --help --device -n --processes --engine --engine-args --framework --dry-run --plan
--global-batch --virtual-ranks --deterministic --seed --on-nan
--precision --strategy --micro-batch --grad-checkpoint --compile --no-fallback
--out --resume --keep --hang-timeout --start-timeout
--model --data --steps --seq-len --lr --optimizer --save-every --eval-every
"""


def test_the_set_of_flags_is_frozen() -> None:
    assert list(spellings()) == FLAGS.split()
    assert sorted(field for fields in SETTING_GROUPS.values() for field in fields) == sorted(row.field for row in SETTINGS)


def dry(hwal: Hwal, *argv: str) -> dict[str, dict[str, object]]:
    result = hwal("train", "--dry-run", *argv)
    assert result.code == 0, result.err
    document: dict[str, dict[str, object]] = json.loads(result.out)
    assert list(document) == ["choice", "plan", "launch"]
    Plan.from_dict(document["plan"])
    Launch.from_dict(document["launch"])
    return document


def env_of(document: dict[str, dict[str, object]]) -> dict[str, str]:
    return Launch.from_dict(document["launch"]).commands[0].env  # type: ignore[return-value]


@pytest.fixture
def script(folder: Path) -> str:
    (folder / "s.py").write_text("import torch\n")
    return "s.py"


def test_what_is_told(hwal: Hwal, script: str, folder: Path) -> None:
    assert hwal("train", "--dry-run", script).err.splitlines() == [
        "hwal: device    cpu: 1 × Toy CPU, priority 10; passed over: null (only when named), "
        "toy (blocked: the driver is too old: 470, and 525 is needed; apt install toy-driver-525)",
        "hwal: processes 1 × 4 threads",
        "hwal: precision bf16 (native: AMX-BF16, from procfs)",
        "hwal: framework torch (s.py imports torch)",
        "hwal: strategy  single (one process)",
        "hwal: engine    direct (one process: this one becomes the worker)",
        "hwal: run       runs/s",
    ]
    assert not (folder / "runs").exists()


def test_two_processes(hwal: Hwal, script: str) -> None:
    result = hwal("train", "--dry-run", "-n", "2", "--precision", "fp16", script)
    assert "hwal: processes 2 × 2 threads on cores 0-1 | 2-3" in result.err
    assert "hwal: note: fp16 is emulated on 1 × Toy CPU:" in result.err


@pytest.mark.parametrize("count", [["-n", "2"], ["-n2"], ["-n=2"], ["--processes", "2"], ["--processes=2"]])
def test_every_way_to_say_n(hwal: Hwal, script: str, count: list[str]) -> None:
    assert len(Plan.from_dict(dry(hwal, *count, script)["plan"]).processes) == 2


@pytest.mark.parametrize(
    ("argv", "own", "script", "arguments"),
    [
        ([], {}, None, ()),
        (["s.py"], {}, "s.py", ()),
        (["--device", "cpu", "s.py", "--device", "x", "--", "-n"], {"device": "cpu"}, "s.py", ("--device", "x", "--", "-n")),
        (["--device=cpu", "--", "s.py", "--x"], {"device": "cpu"}, "s.py", ("--x",)),
        (["--", "--odd.py"], {}, "--odd.py", ()),
        (["--resume", "s.py"], {"resume": "\0"}, "s.py", ()),
        (["--resume", "runs/a", "s.py"], {"resume": "runs/a"}, "s.py", ()),
        (["--resume=runs/a", "s.py"], {"resume": "runs/a"}, "s.py", ()),
        (["--resume", "--compile", "s.py"], {"resume": "\0", "compile": True}, "s.py", ()),
        (["--resume", "--", "s"], {"resume": "\0"}, "s", ()),
        (["--resume"], {"resume": "\0"}, None, ()),
        (["--seed", "-1", "s.py"], {"seed": -1}, "s.py", ()),
        (["--engine-args", "--max-restarts=2", "s.py"], {"engine_args": "--max-restarts=2"}, "s.py", ()),
        (["--engine-args=", "s.py"], {"engine_args": ""}, "s.py", ()),
        (["--micro-batch", "auto"], {"micro_batch": "auto"}, None, ()),
    ],
)
def test_where_the_script_begins(
    argv: list[str], own: dict[str, object], script: str | None, arguments: tuple[str, ...]
) -> None:
    given = read(argv)
    assert (given.script, given.arguments) == (script, arguments)
    assert given.flags == own


def test_the_recipes_own_flags_are_its_argv(hwal: Hwal) -> None:
    given = read(["--steps", "30", "--lr=1e-3", "--seq-len", "64", "--device", "cpu"])
    assert recipe_arguments(given) == ("--steps", "30", "--seq-len", "64", "--lr", "1e-3")
    argv = Launch.from_dict(dry(hwal, "--steps", "30")["launch"]).commands[0].argv
    assert argv[-4:] == ("-m", "hwal_torch.recipe", "--steps", "30")


def test_flags_become_variables_of_the_ranks(hwal: Hwal, script: str) -> None:
    env = env_of(dry(hwal, "--global-batch", "64", "--on-nan", "skip", "--out", "here", "--start-timeout", "5", script))
    settings = {name: text for name, text in env.items() if name in {row.variable for row in SETTINGS}}
    assert settings == {
        "HWAL_GLOBAL_BATCH": "64",
        "HWAL_ON_NAN": "skip",
        "HWAL_OUT": "here",
        "HWAL_START_TIMEOUT": "5.0",
    }
    assert env["HWAL_RUN_DIR"] == "here"


def test_variables_are_defaults_and_flags_win_aloud(hwal: Hwal, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWAL_PRECISION", "fp32")
    monkeypatch.setenv("HWAL_DEVICE", "null")
    monkeypatch.setenv("HWAL_PRECISON", "bf16")
    result = hwal("train", "--dry-run", "--seed", "7", script)
    assert json.loads(result.out)["plan"]["precision"] == {"value": "fp32", "why": "asked for; native: CPU"}
    assert json.loads(result.out)["plan"]["backend"] == "null"
    assert "hwal: note: HWAL_PRECISON is set, but hwal has no such variable; did you mean HWAL_PRECISION?" in result.err
    assert "overrides" not in result.err
    result = hwal("train", "--dry-run", "--device", "cpu", "--precision", "bf16", script)
    assert json.loads(result.out)["plan"]["precision"]["value"] == "bf16"
    assert "hwal: note: --precision bf16 overrides HWAL_PRECISION=fp32\n" in result.err


def test_a_wrong_variable_that_a_flag_overrides_does_no_harm(hwal: Hwal, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HWAL_PRECISION", "bf61")
    assert hwal("train", "--dry-run", "--precision", "bf16", script).code == 0


def test_a_flag_behind_the_script_is_told(hwal: Hwal, script: str) -> None:
    result = hwal("train", "--dry-run", script, "--device", "cpu")
    assert "hwal: note: --device stands behind s.py and goes to it; hwal's own flags go before\n" in result.err


def test_a_dry_run_is_a_plan(hwal: Hwal, script: str, folder: Path) -> None:
    first = hwal("train", "--dry-run", "--device", "null:3", "-n", "2", script)
    (folder / "plan.json").write_text(first.out)
    again = dry(hwal, "--plan", "plan.json", script)
    assert again["plan"] == json.loads(first.out)["plan"]
    assert again["launch"]["commands"] == json.loads(first.out)["launch"]["commands"]
    (folder / "plan.json").write_text(json.dumps(json.loads(first.out)["plan"]))
    assert dry(hwal, "--plan", "plan.json", script)["plan"] == again["plan"]


def test_joining_a_world_that_is_there(hwal: Hwal, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "first")
    monkeypatch.setenv("MASTER_PORT", "2222")
    result = hwal("train", "--dry-run", script)
    plan = Plan.from_dict(json.loads(result.out)["plan"])
    assert (plan.nodes, plan.local_size, plan.world_size, dict(plan.mesh)) == (2, 2, 4, {"dp": 4})
    assert json.loads(result.out)["launch"]["engine"] == "direct"
    assert result.err == "", "rank 0 tells, the others are silent"
    monkeypatch.setenv("RANK", "0")
    assert "on each of 2 machines" in hwal("train", "--dry-run", script).err


FSDP = """\
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_forward_prefetch: true
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_version: 2
mixed_precision: bf16
num_processes: 2
"""


def test_an_fsdp_config_file_is_a_strategy(hwal: Hwal, script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "f.yaml").write_text(FSDP)
    monkeypatch.setenv("HWAL_STRATEGY", "f.yaml")
    result = hwal("train", "--dry-run", script)
    document = json.loads(result.out)
    plan = Plan.from_dict(document["plan"])
    assert plan.strategy == Decision("fsdp:full", "asked for")
    assert (plan.local_size, dict(plan.mesh), plan.wrap) == (2, {"fsdp": 2}, Wrap(("Block",)))
    assert plan.precision.value == "bf16"
    env = env_of(document)
    assert (env["HWAL_STRATEGY"], env["HWAL_GRAD_CHECKPOINT"], env["HWAL_PRECISION"]) == ("fsdp:full", "1", "bf16")
    assert "hwal: note: strategy fsdp:full, from f.yaml\n" in result.err
    assert "hwal: note: f.yaml: fsdp_forward_prefetch has no counterpart here: FSDP2 gathers" in result.err
    result = hwal("train", "--dry-run", "-n", "3", "--precision", "fp32", "--strategy", "f.yaml", script)
    assert Plan.from_dict(json.loads(result.out)["plan"]).local_size == 3
    assert "hwal: note: --precision fp32 overrides f.yaml, which says bf16\n" in result.err
    assert "hwal: note: 3 process(es) here, not the 2 of f.yaml\n" in result.err


@pytest.mark.parametrize(("nodes", "most"), [("2", 2), ("1:4", 4)])
def test_machines_that_the_engine_adds_are_planned_for(hwal: Hwal, script: str, nodes: str, most: int) -> None:
    plan = dry(hwal, "-n", "1", f"--engine-args=--nnodes {nodes} --rdzv-endpoint head:1", script)["plan"]
    assert plan["strategy"] == {"value": "auto", "why": "decided when the model is known"}, "one process here, and not alone"
    assert (plan["nodes"], plan["mesh"]) == (most, {"dp": most})


def saved_run(folder: Path, name: str, at: float) -> Path:
    checkpoints = folder / "runs" / name / "checkpoints"
    (checkpoints / "step-00000001").mkdir(parents=True)
    os.utime(checkpoints, (at, at))
    return folder / "runs" / name


def test_a_bare_resume_goes_on_with_the_newest_saved_run(hwal: Hwal, script: str, folder: Path) -> None:
    saved_run(folder, "s", 3000)
    saved_run(folder, "s-2", 5000)
    saved_run(folder, "s-3", 4000)
    saved_run(folder, "s-other", 9000)  # s-other.py's
    (folder / "runs" / "s-4").mkdir()  # stopped before its first checkpoint
    result = hwal("train", "--dry-run", "--resume", script)
    env = env_of(json.loads(result.out))
    assert (env["HWAL_RESUME"], env["HWAL_RUN_DIR"]) == ("runs/s-2", "runs/s-2")
    assert "hwal: note: going on with runs/s-2\n" in result.err
    assert env_of(dry(hwal, "--resume", "--out", "runs/s", script))["HWAL_RESUME"] == "runs/s"
    assert env_of(dry(hwal, "--resume", "runs/s-3", script))["HWAL_RESUME"] == "runs/s-3"


def test_a_bare_resume_knows_a_run_by_its_script(hwal: Hwal, script: str, folder: Path) -> None:
    """Whatever its folder is called, and whatever another script's is."""
    for path in ("s-2.py", "sub/s.py", "my süß run.py"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).touch()
    for name, at, own in (
        ("s-fbfdb3cd", 2000, script),  # of a job of torchrun's
        ("s", 3000, "sub/s.py"),
        ("s-2", 4000, "s-2.py"),
        ("my-süß-run", 5000, "my süß run.py"),
    ):
        remember(saved_run(folder, name, at), own)
        assert env_of(dry(hwal, "--resume", own))["HWAL_RESUME"] == f"runs/{name}"
        assert env_of(dry(hwal, "--resume", str(folder / own)))["HWAL_RESUME"] == f"runs/{name}"
    (folder / "moved").mkdir()
    (folder / "runs").rename(folder / "moved" / "runs")
    (folder / "s.py").rename(folder / "moved" / "s.py")
    os.chdir(folder / "moved")
    assert env_of(dry(hwal, "--resume", "s.py"))["HWAL_RESUME"] == "runs/s-fbfdb3cd"


def test_a_bare_resume_begins_from_the_start_where_there_is_nothing_yet(hwal: Hwal, script: str, folder: Path) -> None:
    """As a requeued job's may, which was stopped before it had saved."""

    def begins(*flags: str) -> tuple[str, str]:
        result = hwal("train", "--dry-run", "--resume", *flags, script)
        env = env_of(json.loads(result.out))
        assert env.get("HWAL_RESUME", "") == (flags[1] if flags else "")
        return env["HWAL_RUN_DIR"], next((line for line in result.err.splitlines() if "note: nothing to go on" in line), "")

    said = "hwal: note: nothing to go on with: {}: begins from the start"
    assert begins() == ("runs/s", said.format("no run of it in runs"))
    (folder / "runs" / "s").mkdir(parents=True)
    assert begins() == ("runs/s-2", said.format("none of its 1 run(s) in runs has a checkpoint"))
    (folder / "other.py").touch()
    remember(folder / "runs" / "s", "other.py")
    assert begins() == ("runs/s-2", said.format("no run of it in runs; runs/s is another script's"))
    assert begins("--out", "a") == ("a", "")  # its rank 0 says so


def test_the_recipes_runs_are_its_own(hwal: Hwal, folder: Path) -> None:
    (folder / "recipe.py").touch()
    remember(saved_run(folder, "recipe-2", 4000), "recipe.py")
    path = saved_run(folder, "recipe", 3000)
    (path / "run.json").write_text('{"script": "-m hwal_torch.recipe"}')
    assert env_of(dry(hwal, "--resume"))["HWAL_RESUME"] == "runs/recipe"
    assert env_of(dry(hwal, "--resume", "recipe.py"))["HWAL_RESUME"] == "runs/recipe-2"


def test_launching_makes_the_folder_and_returns_the_exit_code(
    hwal: Hwal, script: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Launch] = []
    monkeypatch.setattr("hwal.cli.train.run", lambda launch: begun.append(launch) or 75)
    monkeypatch.setattr("hwal.host.Host.version", lambda self, distribution: "2.8.0")
    result = hwal("train", script, "--epochs", "3")
    assert (result.code, result.out) == (75, "")
    assert (folder / "runs" / "s").is_dir()
    assert begun[0].commands[0].argv[-3:] == ("s.py", "--epochs", "3")


def test_devices_of_another_machine_are_planned_for_and_do_not_train(
    hwal: Hwal, script: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwal.cli.train.run", lambda launch: pytest.fail("ranks were started"))
    (folder / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV2\t X \n")  # of nvidia-smi topo -m
    for other, count in ((Path(__file__).parents[1] / "hosts" / "cuda-dgx-1v", 8), (folder / "topo.txt", 2)):
        monkeypatch.setenv("HWAL_TOPOLOGY", str(other))
        assert len(Plan.from_dict(dry(hwal, "--framework", "torch", script)["plan"]).processes) == count
        result = hwal("train", "--framework", "torch", script)
        assert result.code == 2 and result.err.startswith(
            f"hwal: error: the devices of another machine cannot train: {count} of {count} cuda device(s) are not here\n"
            f"  where: HWAL_TOPOLOGY={other}\n"
        )
        assert "unset HWAL_TOPOLOGY, or hwal train --dry-run" in result.err and not (folder / "runs").exists()


def test_help_fits_and_names_what_there_is(hwal: Hwal) -> None:
    result = hwal("train", "--help")
    assert result.code == 0
    assert all(len(line) <= 120 for line in result.out.splitlines())
    for word in [*FLAGS.split(), "exit codes:", "examples:", "75"]:
        assert word in result.out


def test_a_framework_that_is_not_installed(folder: Path, hwal: Hwal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwal.host.Host.version", lambda self, distribution: None)
    (folder / "s.py").write_text("import torch")
    result = hwal("train", "s.py")
    assert (result.code, result.err.splitlines()[-3:]) == (
        2,
        [
            "hwal: error: torch is not installed",
            "  why:   framework torch (s.py imports torch)",
            "  try:   pip install 'hwal[torch]'",
        ],
    )
    assert not (folder / "runs").exists()


def test_a_plan_of_another_machine(folder: Path, hwal: Hwal) -> None:
    (folder / "s.py").write_text("import torch")
    document = json.loads(hwal("train", "--dry-run", "--device", "null", "s.py").out)
    document["plan"]["devices"][1]["id"] = "null9"
    (folder / "plan.json").write_text(json.dumps(document))
    result = hwal("train", "--plan", "plan.json", "s.py")
    assert (result.code, result.err) == (
        2,
        "hwal: error: null device 1 is another one: null9 in the plan, null1 here\n"
        "  where: --plan plan.json\n"
        "  try:   make a plan on this machine: hwal train --dry-run\n",
    )
