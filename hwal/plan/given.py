"""A plan from a file (`--plan FILE`): read, and held against the machine and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hwal.errors import PlanError, RecordError, UsageError
from hwal.record import parse_json
from hwal.values import AUTO, Choice, Plan, Probe, Request, Target


def read_plan(text: str, where: str) -> Plan:
    """The Plan in the text of a file: a plan.json, or the document that `hwal train --dry-run` prints. Raises RecordError."""
    data: Any = parse_json(text, where)
    if isinstance(data, Mapping) and "plan" in data and "launch" in data:
        return Plan.from_dict(data["plan"], f"{where}: plan")
    if not isinstance(data, Mapping) or "processes" not in data:
        raise RecordError(
            "neither a plan nor what --dry-run prints", where=where, hint="hwal train --dry-run … > FILE writes such a file"
        )
    return Plan.from_dict(data, where)


def choice_of(plan: Plan, probes: Sequence[Probe], request: Request) -> Choice:
    """The devices a given plan uses, found on this machine.

    Raises PlanError when one is not here, or is another one by its id; UsageError when a flag says otherwise than the plan.
    """
    where = f"--plan {request.plan}"
    probe = next((probe for probe in probes if probe.backend == plan.backend and probe.state == "ready"), None)
    here = {device.index: device for device in probe.devices} if probe else {}
    missing = [device.index for device in plan.devices if device.index not in here]
    if missing:
        raise PlanError(
            f"the plan uses {len(plan.devices)} {plan.backend} device(s), {len(here)} here; "
            f"missing: {', '.join(map(str, missing))}",
            where=where,
            hint="make a plan on this machine: hwal train --dry-run",
        )
    for device in plan.devices:
        found = here[device.index]
        if device.id is not None and found.id is not None and device.id != found.id:
            raise PlanError(
                f"{plan.backend} device {device.index} is another one: {device.id} in the plan, {found.id} here",
                where=where,
                hint="make a plan on this machine: hwal train --dry-run",
            )
    used = {index for process in plan.processes for index in process.devices}
    if unknown := used - {device.index for device in plan.devices}:
        listed = ", ".join(map(str, sorted(unknown)))
        raise PlanError(f"a process of the plan uses device {listed}, which the plan's devices do not list", where=where)
    _agree(plan, request, where)
    return Choice(Target(plan.backend), plan.backend, plan.devices, f"asked for by {where}")


def _agree(plan: Plan, request: Request, where: str) -> None:
    """Flags given beside --plan must say what the plan says."""
    settings = request.settings
    rows = (
        ("-n", request.processes, plan.local_size),
        ("--framework", request.framework, plan.framework.value),
        ("--device", None if request.target.backend == AUTO else request.target.backend, plan.backend),
        ("--precision", None if settings.precision == AUTO else settings.precision, plan.precision.value),
        ("--strategy", None if settings.strategy == AUTO else settings.strategy, plan.strategy.value),
        ("--micro-batch", settings.micro_batch, plan.micro_batch),
    )
    for flag, asked, planned in rows:
        if asked is not None and asked != planned:
            raise UsageError(
                f"{flag} {asked} contradicts the plan, which says {planned}", where=where, hint=f"leave out {flag} or --plan"
            )
