"""make_plan: the straight line of it; each decision is a file of its own."""

from __future__ import annotations

from collections.abc import Sequence

from hwal.errors import VersionError
from hwal.plan.batch import check_batch, check_deterministic
from hwal.plan.keras import decide_replicas, drives_all, refuse_torchs
from hwal.plan.later import refuse_later
from hwal.plan.precision import decide_precision
from hwal.plan.processes import lay_out
from hwal.plan.strategy import decide_strategy, mesh_of
from hwal.topology import Device, straggler
from hwal.values import Caps, Choice, Decision, Plan, Request


def make_plan(choice: Choice, caps: Caps, request: Request, framework: Decision, nodes: int = 1) -> Plan:
    """How `request` runs on the chosen devices.

    `request.processes` counts those of one node; `nodes` is more than 1 only when joining a world that spans machines.

    Raises VersionError (no runtime for the framework), PlanError (numbers that do not fit), DeviceError (a device for
    one process only) and UsageError (a setting that means nothing here). Every decision in the result has its reason.
    """
    check_framework(framework, caps, choice.backend)
    refuse_later(request.settings)
    keras = framework.value == "keras"
    if keras:
        refuse_torchs(request.settings)
    one_for_all = drives_all(caps) if keras else caps.spmd
    layout = lay_out(choice, caps, request.processes, nodes, one_for_all, several=not keras)
    world = nodes * len(layout.processes)
    devices = sum(len(process.devices) for process in layout.processes)
    precision, cost = decide_precision(request.settings.precision, layout.devices, caps)
    if keras:
        strategy, cut = decide_replicas(request.settings, world, nodes * devices, one_for_all)
    else:
        strategy = decide_strategy(request.settings.strategy, nodes * devices, caps, choice.backend)
        check_deterministic(request.settings, caps, choice.backend)
        cut = check_batch(request.settings, world, strategy.value)
    return Plan(
        backend=choice.backend,
        framework=framework,
        devices=layout.devices,
        processes=layout.processes,
        mesh=mesh_of(strategy.value, nodes, devices),
        precision=precision,
        strategy=strategy,
        micro_batch=request.settings.micro_batch,
        nodes=nodes,
        wrap=request.wrap,
        notes=layout.notes + _mixed(layout.devices) + cost + cut + (() if caps.untried is None else (caps.untried,)),
    )


def _mixed(devices: Sequence[Device]) -> tuple[str, ...]:
    """What it costs that devices of different kinds were asked for."""
    cost = straggler(devices)
    return () if cost is None else (f"mixed kinds: every step waits for the slowest ({cost})",)


def check_framework(framework: Decision, caps: Caps, backend: str) -> None:
    """Raises VersionError when the backend has no runtime for the framework."""
    if framework.value not in caps.frameworks:
        there = " and ".join(caps.frameworks) or "none"
        raise VersionError(
            f"this version has no {framework.value} runtime for {backend}; there is {there}",
            why=f"framework {framework}",
            hint="hwal devices shows what else is here" if not caps.frameworks else f"--framework {caps.frameworks[0]}",
        )
