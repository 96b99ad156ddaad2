"""How parameters and gradients are laid over the ranks, and the mesh of that."""

from __future__ import annotations

from hwal.env import STRATEGIES
from hwal.errors import PlanError, UsageError, nearest
from hwal.values import AUTO, Caps, Decision

OFFLOAD = "+offload"
ELSEWHERE = {"ZERO2": "fsdp:grad-op", "ZERO3": "fsdp:full", "FSDP": "fsdp:full", "FSDP2": "fsdp:full", "DP": "ddp"}
"""What other libraries call a strategy -> its name here; those of FSDP are in fsdp_file."""


def decide_strategy(asked: str, world: int, caps: Caps, backend: str) -> Decision:
    """The strategy and why; `auto` stays open at more than one process, until the model is known.

    `world` counts what parameters and batches are laid over: processes, or the devices that one process drives (Caps.spmd).
    At one of them all strategies are `single`. Raises UsageError for a name that is none, PlanError for one that does not
    fit the world or the backend.
    """
    one = "device" if caps.spmd else "process"
    where = f"--strategy {asked}"
    name = asked.removesuffix(OFFLOAD)
    if name not in STRATEGIES:
        near = _meant(name)
        raise UsageError(
            f"unknown strategy {name!r}; there are {', '.join(STRATEGIES)}",
            where=where,
            hint=f"did you mean {near}?" if near else "an FSDP config file's name ends in .yaml or .json",
        )
    sharded = is_sharded(name)
    if name != asked and not sharded:
        raise UsageError(
            f"{OFFLOAD} goes with the fsdp strategies only, not with {name}", where=where, hint=f"--strategy {name}"
        )
    if sharded and not caps.sharding:
        raise PlanError(f"{backend} cannot shard parameters over ranks", where=where, hint="--strategy ddp")
    if name == "single" and world > 1:
        raise PlanError(
            f"single is for one {one}, the world has {world} ({world} ≠ 1)",
            where=where,
            hint=f"{'--device with one' if caps.spmd else '-n 1'}, or --strategy ddp",
        )
    if sharded and world == 1:
        if name != asked:
            raise PlanError(
                f"{OFFLOAD} keeps shards in the host's memory, and one {one} has none",
                where=where,
                hint=f"{'more devices' if caps.spmd else '-n 2 or more'}; in one process --grad-checkpoint and a smaller "
                "--micro-batch save memory",
            )
        return Decision("single", f"{name} asked for, and one {one} has nothing to shard")
    if name == "ddp" and world == 1:
        return Decision("single", f"ddp asked for, and one {one} has nothing to bring together")
    if name == AUTO:
        return Decision("single", f"one {one}") if world == 1 else Decision(AUTO, "decided when the model is known")
    if is_hybrid(name):  # how many machines there are may be known to the engine only
        return Decision(
            asked, f"asked for; within one machine the same as {asked.replace('hybrid-', '').replace('hybrid', 'full')}"
        )
    return Decision(asked, "asked for")


def _meant(name: str) -> str | None:
    """The strategy that another library's name stands for, or that is spelled nearly so."""
    from hwal.plan.fsdp_file import STRATEGIES as FSDP  # only errors need it

    plain = name.upper().removeprefix("_").replace("-", "_")
    return FSDP.get(plain) or ELSEWHERE.get(plain.replace("_", "")) or nearest(name, STRATEGIES)


def is_file_name(strategy: str) -> bool:
    """Whether --strategy names a file: no strategy's name has such an ending, or a slash."""
    return strategy.lower().endswith((".yaml", ".yml", ".json")) or "/" in strategy or "\\" in strategy


def mesh_of(strategy: str, nodes: int, local: int) -> dict[str, int]:
    """The mesh's axes over `nodes` machines of `local` devices: dp holds copies, fsdp the shards of one."""
    if not is_sharded(strategy):
        return {"dp": nodes * local}
    return {"dp": nodes, "fsdp": local} if is_hybrid(strategy) else {"fsdp": nodes * local}


def is_sharded(strategy: str) -> bool:
    return strategy.startswith("fsdp:")


def is_hybrid(strategy: str) -> bool:
    return strategy.startswith("fsdp:hybrid")
