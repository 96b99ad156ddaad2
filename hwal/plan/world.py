"""A plan meets the world that has gathered: an engine may bring more machines than were planned for, or fewer."""

from __future__ import annotations

import math
from dataclasses import replace

from hwal.env import Settings
from hwal.plan.batch import check_batch
from hwal.plan.keras import decide_replicas, drives_all
from hwal.plan.strategy import decide_strategy, mesh_of
from hwal.values import AUTO, Caps, Decision, Plan


def at_world(plan: Plan, settings: Settings, nodes: int, caps: Caps) -> Plan:
    """`plan` on that many machines: its strategy and mesh are those of the world as it is.

    Raises PlanError where they do not fit it: `single` that was asked for, virtual ranks that are no multiple of it.
    """
    local = math.prod(plan.mesh.values()) // plan.nodes  # processes, or the devices that one of them drives
    size = nodes * local
    strategy = plan.strategy
    if plan.framework.value == "keras":
        strategy, _ = decide_replicas(settings, nodes * plan.local_size, size, drives_all(caps))
        same = nodes == plan.nodes and strategy == plan.strategy
        return plan if same else replace(plan, nodes=nodes, strategy=strategy, mesh=mesh_of(strategy.value, nodes, local))
    if size > 1 and strategy.value == "single":  # decided for the one process of one machine
        strategy = decide_strategy(settings.strategy, size, caps, plan.backend)
    elif size == 1 and strategy.value != "single" and (plan.nodes * local > 1 or strategy.value != AUTO):
        strategy = Decision("single", f"one process is left; {strategy} was planned")
    if nodes == plan.nodes and strategy == plan.strategy:
        return plan
    check_batch(settings, nodes * plan.local_size, strategy.value)
    return replace(plan, nodes=nodes, strategy=strategy, mesh=mesh_of(strategy.value, nodes, local))
