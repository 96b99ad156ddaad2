"""Plans of Keras runs: replicas, and what is for torch only, each refusal as printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwal.env import Settings
from hwal.errors import HwalError, PlanError, VersionError
from hwal.plan import make_plan
from hwal.plan.keras import TORCHS, check_backend
from hwal.plan.world import at_world
from hwal.topology import Device
from hwal.values import Caps, Choice, Decision, Plan, Request, Target

CAPS = Caps(frameworks=("torch", "keras"), collectives="gloo", shares_devices=True, sharding=True)


def plan(devices: int = 1, n: int | None = None, caps: Caps = CAPS, **settings: object) -> Plan:
    choice = Choice(Target("toy"), "toy", tuple(Device("toy", index) for index in range(devices)), "a test")
    request = Request(target=Target("toy"), processes=n, settings=Settings(**settings))  # type: ignore[arg-type]
    return make_plan(choice, caps, request, Decision("keras", "a test"))


def test_one_replica_is_single_and_logical_devices_are_replicas() -> None:
    assert plan().strategy == Decision("single", "one replica")
    eight = plan(virtual_ranks=8)
    assert eight.strategy == Decision("ddp", "8 replicas, a whole model on each")
    assert eight.notes == ("virtual ranks: 8 logical devices of each process's CPU, slower than one",)
    assert (eight.local_size, eight.mesh) == (1, {"dp": 1})
    two = plan(n=2, virtual_ranks=8)
    assert two.notes[0].startswith("virtual ranks: 4 logical") or any("4 logical" in note for note in two.notes)


def test_one_process_is_started_for_a_machine_and_more_when_asked_for() -> None:
    assert plan(devices=2).local_size == 1
    assert plan(devices=2, n=2).strategy == Decision("ddp", "2 replicas, a whole model on each")


def test_one_process_drives_all_gpus_of_a_machine() -> None:
    gpus = replace(CAPS, shares_devices=False)
    eight = plan(devices=8, caps=gpus)
    assert (eight.local_size, eight.mesh, eight.notes) == (1, {"dp": 8}, ())
    assert eight.processes[0].devices == tuple(range(8))
    assert eight.strategy == Decision("ddp", "8 replicas, a whole model on each")
    assert plan(devices=8, n=8, caps=gpus).local_size == 8
    assert plan(caps=gpus).strategy.value == "single"
    assert at_world(eight, Settings(), 2, gpus).strategy == Decision("ddp", "16 replicas, a whole model on each")


def test_a_cpu_that_is_left_idle_is_told() -> None:
    assert plan(devices=2).notes == ("1 of 2 devices used, by one process; -n 2 takes all; idle: toy 1",)


def test_a_plan_keeps_its_replicas_in_the_world_that_gathers() -> None:
    eight = plan(virtual_ranks=8)
    assert at_world(eight, Settings(virtual_ranks=8), 1, CAPS) == eight
    assert at_world(plan(), Settings(), 2, CAPS).strategy == Decision("ddp", "2 replicas, a whole model on each")


REFUSED = {
    "strategy": ("fsdp:full", "--strategy fsdp:full"),
    "micro_batch": (8, "--micro-batch 8"),
    "grad_checkpoint": (True, "--grad-checkpoint"),
    "compile": (True, "--compile"),
    "deterministic": (True, "--deterministic"),
    "on_nan": ("skip", "--on-nan skip"),
}


@pytest.mark.parametrize("field", TORCHS)
def test_what_only_torch_can_is_refused_with_what_to_do(field: str) -> None:
    value, shown = REFUSED[field]
    with pytest.raises(HwalError) as caught:
        plan(**{field: value})
    assert caught.value.what == f"{shown} is for torch scripts, and this is one of Keras"
    assert caught.value.hint and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"virtual_ranks": 3, "n": 2}, "3 replicas on 2 devices of 2 processes"),
        ({"virtual_ranks": 8, "caps": replace(CAPS, spmd=True)}, "8 replicas on 1 device of 1 process"),
        ({"virtual_ranks": 8, "caps": replace(CAPS, shares_devices=False)}, "8 replicas on 1 device of 1 process"),
        (
            {"devices": 4, "n": 2, "caps": replace(CAPS, shares_devices=False)},
            "2 processes for 4 toy devices: there is one for all of them, or one for each",
        ),
        ({"virtual_ranks": 2, "strategy": "single"}, "single is for one replica, and there are 2 (2 ≠ 1)"),
    ],
)
def test_numbers_that_do_not_fit(options: dict[str, object], what: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(**options)  # type: ignore[arg-type]
    assert caught.value.what == what


def test_another_library_below_keras_is_refused_with_the_reason() -> None:
    for fine in ({}, {"KERAS_BACKEND": ""}, {"KERAS_BACKEND": "tensorflow"}):
        check_backend(fine)
    with pytest.raises(VersionError) as caught:
        check_backend({"KERAS_BACKEND": "jax"})
    assert str(caught.value).splitlines() == [
        "Keras is to compute by jax, and hwal trains Keras models by TensorFlow's strategies",
        "  where: KERAS_BACKEND=jax",
        "  why:   replicas, TPUs and several machines are TensorFlow's; for torch hwal has a runtime of its own",
        "  try:   unset KERAS_BACKEND, or KERAS_BACKEND=tensorflow; the file keras.json may say so too",
    ]
