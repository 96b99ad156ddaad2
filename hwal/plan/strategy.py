"""How parameters and gradients are laid over the ranks."""

from __future__ import annotations

from hwal.env import STRATEGIES
from hwal.errors import PlanError, UsageError, nearest
from hwal.values import AUTO, Caps, Decision

OFFLOAD = "+offload"


def decide_strategy(asked: str, world: int, caps: Caps, backend: str) -> Decision:
    """The strategy and why; `auto` stays open at more than one process, until the model is known.

    Raises UsageError for a name that is none, PlanError for one that does not fit the world or the backend.
    """
    where = f"--strategy {asked}"
    name = asked.removesuffix(OFFLOAD)
    if name not in STRATEGIES:
        near = nearest(name, STRATEGIES)
        raise UsageError(
            f"unknown strategy {name!r}; there are {', '.join(STRATEGIES)}",
            where=where,
            hint=f"did you mean {near}?" if near else None,
        )
    sharded = name.startswith("fsdp:")
    if name != asked and not sharded:
        raise UsageError(
            f"{OFFLOAD} goes with the fsdp strategies only, not with {name}", where=where, hint=f"--strategy {name}"
        )
    if sharded and not caps.sharding:
        raise PlanError(f"{backend} cannot shard parameters over ranks", where=where, hint="--strategy ddp")
    if sharded:
        raise UsageError(
            f"{name} comes with the next version of hwal",
            where=where,
            why="this one keeps a whole copy of the model on every rank",
            hint="--strategy ddp",
        )
    if name == "single" and world > 1:
        raise PlanError(
            f"single is for one process, the world has {world} ({world} ≠ 1)", where=where, hint="-n 1, or --strategy ddp"
        )
    if name == "ddp" and world == 1:
        return Decision("single", "ddp asked for, and one process has nothing to bring together")
    if name == AUTO:
        return Decision("single", "one process") if world == 1 else Decision(AUTO, "decided when the model is known")
    return Decision(name, "asked for")
