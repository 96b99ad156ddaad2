"""at_world: a plan meets more machines than it was made for, or fewer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwal.env import Settings
from hwal.errors import PlanError
from hwal.plan.world import at_world
from hwal.topology import Device
from hwal.values import Caps, Decision, Plan, Process
from tests.launch.plans import plan

CAPS = Caps(frameworks=("torch",), collectives="gloo", sharding=True)


def planned(strategy: str, nodes: int, processes: int = 1, why: str = "asked for") -> Plan:
    return replace(plan(processes, nodes=nodes), strategy=Decision(strategy, why))


def test_the_world_that_was_planned_for_changes_nothing() -> None:
    for made in (planned("ddp", 2), planned("auto", 1), planned("single", 1), planned("fsdp:full", 1, 2)):
        assert at_world(made, Settings(), made.nodes, CAPS) is made


@pytest.mark.parametrize("strategy", ["ddp", "fsdp:full", "fsdp:hybrid+offload", "auto"])
def test_one_process_is_left(strategy: str) -> None:
    """--nnodes 1:4 is planned for four machines."""
    met = at_world(planned(strategy, 4), Settings(strategy=strategy), 1, CAPS)
    assert (met.strategy.value, met.nodes, met.mesh, met.world_size) == ("single", 1, {"dp": 1}, 1)
    assert f"{strategy} (asked for) was planned" in met.strategy.why


def test_a_plan_of_one_process_on_two_machines() -> None:
    made = planned("single", 1, why="one process")
    assert at_world(made, Settings(), 2, CAPS).strategy.value == "auto"
    met = at_world(made, Settings(strategy="fsdp:full"), 2, CAPS)
    assert (met.strategy.value, met.mesh) == ("fsdp:full", {"fsdp": 2})
    with pytest.raises(PlanError, match=r"single is for one process, the world has 2 \(2 ≠ 1\)"):
        at_world(made, Settings(strategy="single"), 2, CAPS)


def test_one_process_that_drives_several_devices() -> None:
    """What is laid over devices is decided by their number, what is dealt to processes by theirs."""
    caps = replace(CAPS, spmd=True)
    devices = tuple(Device("tpu", index) for index in range(4))
    made = replace(planned("auto", 1), devices=devices, processes=(Process(0, (0, 1, 2, 3)),), mesh={"dp": 4})
    assert at_world(made, Settings(), 1, caps) is made
    met = at_world(made, Settings(strategy="fsdp:full", virtual_ranks=2), 2, caps)
    assert (met.nodes, met.mesh, met.world_size, met.strategy.value) == (2, {"dp": 8}, 2, "auto")
    sharded = replace(made, strategy=Decision("fsdp:full", "asked for"), mesh={"fsdp": 4})
    assert at_world(sharded, Settings(strategy="fsdp:full"), 2, caps).mesh == {"fsdp": 8}
    with pytest.raises(PlanError, match="3 = 1 × 2"):
        at_world(sharded, Settings(strategy="fsdp:full", virtual_ranks=3), 2, caps)


def test_fewer_machines_that_are_still_several() -> None:
    met = at_world(planned("fsdp:hybrid", 4, 2), Settings(strategy="fsdp:hybrid"), 3, CAPS)
    assert (met.strategy.value, met.mesh) == ("fsdp:hybrid", {"dp": 3, "fsdp": 2})


def test_virtual_ranks_must_be_a_multiple_of_the_world_as_it_is() -> None:
    made, settings = planned("ddp", 4), Settings(virtual_ranks=4)
    assert at_world(made, settings, 2, CAPS).nodes == 2
    with pytest.raises(PlanError, match="virtual ranks must be a multiple of the world size"):
        at_world(made, settings, 3, CAPS)
