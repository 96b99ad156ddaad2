"""Variables that every rank finds before its framework is imported: what a backend wants, and what the user has set. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hwal.backend import Backend
from hwal.host import Host
from hwal.record import Record, dataclass
from hwal.values import Decision, Plan, Probe

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Wanted(Record):
    """What a backend wants in every rank's environment.

    Attributes:
        needed: what its framework must have (Backend.environment); a variable that the user has set stays.
        tuned: what suits this machine, each with its reason (Backend.tuning); likewise.
        masks: what shows a process the plan's devices and no others (Backend.visible); they replace the user's own masks,
            below which the plan was made.
    """

    needed: Mapping[str, str]
    tuned: Mapping[str, Decision]
    masks: Mapping[str, str]


def wanted(backend: Backend, plan: Plan, probe: Probe, host: Host) -> Wanted:
    """What `backend` wants for `plan` on the machine that `probe` describes and `host` answers for."""
    return Wanted(backend.environment(plan), backend.tuning(plan, probe, host), backend.visible(plan.devices, host))


def settle(wants: Wanted, environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables to set beside those of `environ`, and what to say: the reasons, and which of the user's own stay or go."""
    chosen = {**wants.needed, **{name: decision.value for name, decision in wants.tuned.items()}}
    kept = [
        f"{name}={environ[name]} is set in your environment and stays (hwal would set {value})"
        for name, value in chosen.items()
        if environ.get(name, value) != value and name != THREADS
    ]
    told = [f"{name}={decision.value}: {decision.why}" for name, decision in wants.tuned.items() if name not in environ]
    if wants.masks:
        yours = [f"{name}={environ[name]}" for name, mask in wants.masks.items() if environ.get(name, mask) != mask]
        verb = "shows" if len(wants.masks) == 1 else "together show"
        text = f"{' and '.join(wants.masks)} {verb} every rank the plan's devices in the order of the ranks"
        told.append(f"{text}, in place of your {' '.join(yours)}" if yours else text)
    return {**{name: value for name, value in chosen.items() if name not in environ}, **wants.masks}, (*kept, *told)
