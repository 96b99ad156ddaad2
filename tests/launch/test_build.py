from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hwal.env import Settings
from hwal.errors import UsageError, WorldError
from hwal.launch import build
from hwal.launch.build import TEMPORARY
from hwal.launch.variables import Wanted, settle
from hwal.values import Decision, Launch, Plan, Request, World

from .plans import plan

JOINED = World(1, 2, 1, 2, "torchrun", "127.0.0.1", 29500)
SCRIPT = Request(script="train.py", arguments=("--lr", "3e-4", "a b; $(rm)"))


def launch(
    of: Plan, request: Request = SCRIPT, world: World | None = None, environ: dict[str, str] | None = None, **environment: str
) -> Launch:
    return build(of, request, Wanted(environment, {}, {}), world or World(), environ or {}, Path("runs/x"))


def test_one_process_becomes_the_worker() -> None:
    made = launch(plan())
    (command,) = made.commands
    assert made.engine == "direct" and made.state_dir is None
    assert command.argv == (sys.executable, "-m", "hwal.worker", "train.py", "--lr", "3e-4", "a b; $(rm)")
    assert command.env["HWAL_PROCESSES"] == "1" and command.env["HWAL_RUN_DIR"] == "runs/x"
    assert Plan.from_json(command.env["HWAL_PLAN"]) == plan()


def test_several_go_to_torchrun_on_a_free_port() -> None:
    made = launch(plan(3))
    argv = made.commands[0].argv
    assert made.engine == "torchrun" and made.state_dir == TEMPORARY
    assert argv[:5] == (sys.executable, "-m", "hwal_torch.torchrun", "--nproc-per-node", "3")
    assert argv[argv.index("--rdzv-endpoint") + 1] == "127.0.0.1:0"
    assert argv[-6:] == ("-m", "hwal.worker", "train.py", "--lr", "3e-4", "a b; $(rm)")
    assert made.commands[0].env["HWAL_PROCESSES"] == "3"


def test_build_is_pure_and_its_value_reads_back() -> None:
    assert launch(plan(2)) == launch(plan(2))
    assert Launch.from_json(launch(plan(2)).to_json()) == launch(plan(2))


def test_without_a_script_the_recipe_runs() -> None:
    argv = launch(plan(), Request(arguments=("--steps", "3"))).commands[0].argv
    assert argv[-5:] == ("hwal.worker", "-m", "hwal_torch.recipe", "--steps", "3")
    assert launch(plan(framework="keras"), Request()).commands[0].argv[-3:] == ("hwal.worker", "-m", "hwal_keras.recipe")


def test_a_world_that_exists_is_joined() -> None:
    made = launch(plan(2), world=JOINED)
    assert made.engine == "direct" and "joins it and starts nothing" in made.why
    assert made.commands[0].env["HWAL_PROCESSES"] == "2"
    with pytest.raises(WorldError) as caught:
        launch(plan(2), replace(SCRIPT, processes=4), JOINED)
    assert "-n 4" in str(caught.value) and "world of 2" in str(caught.value)
    with pytest.raises(WorldError, match="plan has 1"):
        launch(plan(1), world=JOINED)
    with pytest.raises(UsageError, match="already"):
        launch(plan(2), replace(SCRIPT, engine="torchrun"), JOINED)


def test_engine_arguments_pass_as_they_are() -> None:
    given = ("--nnodes=2", "--rdzv-backend", "c10d", "--rdzv_endpoint", "head:29400", "--max-restarts=3")
    made = launch(plan(2), replace(SCRIPT, engine_arguments=given))
    argv = made.commands[0].argv
    assert argv[5 : 5 + len(given)] == given and "127.0.0.1:0" not in argv
    planned = Plan.from_json(made.commands[0].env["HWAL_PLAN"])
    assert (planned.nodes, planned.mesh, planned.world_size) == (2, {"dp": 4}, 4)
    assert made.commands[0].env["HWAL_PROCESSES"] == "4"


def test_an_elastic_world_has_no_size_to_insist_on() -> None:
    made = launch(plan(2), replace(SCRIPT, engine_arguments=("--nnodes", "1:4")))
    assert made.commands[0].env["HWAL_PROCESSES"] == ""
    assert launch(plan(1), replace(SCRIPT, engine_arguments=("--max-restarts=1",))).engine == "torchrun"


@pytest.mark.parametrize(
    ("request_", "of", "text"),
    [
        (replace(SCRIPT, engine="mpi"), plan(2), "not in this version"),
        (replace(SCRIPT, engine="torchrum"), plan(2), "did you mean torchrun"),
        (replace(SCRIPT, engine="direct"), plan(2), "starts one process"),
        (replace(SCRIPT, engine="direct", engine_arguments=("-x",)), plan(1), "takes no arguments"),
        (replace(SCRIPT, engine_arguments=("--nproc_per_node=3",)), plan(2), "-n says"),
        (replace(SCRIPT, engine_arguments=("--nnodes", "many")), plan(2), "--nnodes many"),
        (replace(SCRIPT, engine_arguments=("--nnodes",)), plan(2), "not a number"),
        (replace(SCRIPT, engine_arguments=("--no-python",)), plan(2), "its own worker"),
    ],
)
def test_what_cannot_be_started_is_a_usage_error(request_: Request, of: Plan, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        launch(of, request_)
    assert text in str(caught.value)


def test_the_users_variables_stay_and_are_told() -> None:
    made = launch(plan(2, threads=4), environ={"OMP_NUM_THREADS": "3", "A": "mine", "B": "2"}, A="ours", B="2", C="3")
    env = made.commands[0].env
    assert env["C"] == "3" and not {"A", "B", "OMP_NUM_THREADS"} & set(env)
    assert [process.threads for process in Plan.from_json(env["HWAL_PLAN"]).processes] == [3, 3]
    assert made.notes == (
        "OMP_NUM_THREADS=3 is set in your environment and stays (hwal would take 4 a process)",
        "A=mine is set in your environment and stays (hwal would set ours)",
    )


def test_variables_are_told_with_their_reasons_and_masks_replace_the_users() -> None:
    tuned = {"NCCL_A": Decision("1", "so it is"), "NCCL_B": Decision("1", "so it is"), "NCCL_C": Decision("1", "so it is")}
    environ = {"NCCL_B": "0", "NCCL_C": "1", "MASK": "3,1", "SEEN": "0"}
    delta, told = settle(Wanted({"NEEDED": "2"}, tuned, {"MASK": "1,3", "SEEN": "0"}), environ)
    assert delta == {"NEEDED": "2", "NCCL_A": "1", "MASK": "1,3", "SEEN": "0"}
    assert told == (
        "NCCL_B=0 is set in your environment and stays (hwal would set 1)",
        "NCCL_A=1: so it is",
        "MASK and SEEN together show every rank the plan's devices in the order of the ranks, in place of your MASK=3,1",
    )


def test_torchrun_is_told_the_threads_so_that_it_does_not_choose() -> None:
    assert launch(plan(2, threads=4)).commands[0].env["OMP_NUM_THREADS"] == "4"
    assert "OMP_NUM_THREADS" not in launch(plan(2, threads=None)).commands[0].env


def test_workers_read_the_same_settings_whatever_was_set_before() -> None:
    environ = {"HWAL_SEED": "7", "HWAL_PRECISION": "bf16"}
    settings = Settings(precision="fp32", seed=42, compile=True)
    env = launch(plan(), replace(SCRIPT, settings=settings), environ=environ).commands[0].env
    assert Settings.from_environ({**environ, **env}) == settings
