"""What the settings that cut a global batch ask of each other and of the world."""

from __future__ import annotations

from hwal.env import Settings
from hwal.errors import PlanError, UsageError
from hwal.plan.strategy import is_sharded
from hwal.values import Caps


def check_deterministic(settings: Settings, caps: Caps, backend: str) -> None:
    """Raises PlanError where --deterministic cannot be kept."""
    if settings.deterministic and not caps.deterministic:
        raise PlanError(
            f"{backend} cannot promise the same bits at every world",
            where="--deterministic",
            why="its compiler chooses how sums are split, another way for each number of devices",
            hint="leave it out: fp32 losses within 1e-5; or --device cpu",
        )


def check_batch(settings: Settings, world: int, strategy: str) -> tuple[str, ...]:
    """What the cut costs, in words. Raises PlanError or UsageError when the parts of a global batch do not fit together."""
    parts = settings.virtual_ranks
    if settings.deterministic and parts is None:
        raise UsageError(
            "--deterministic needs --virtual-ranks",
            why="losses are bitwise equal at two worlds only when both add the same parts in the same order",
            hint=f"--deterministic --virtual-ranks {world}, or any multiple of every world size you mean to use",
        )
    if settings.deterministic and is_sharded(strategy):
        raise UsageError(
            f"--deterministic goes with single and ddp, not with {strategy}",
            why="it adds the gradients of the parts in their order, and a shard's are added while they travel",
            hint="--strategy ddp, or leave out --deterministic: losses within 1e-6 instead of equal",
        )
    if parts is None:
        return ()
    if settings.micro_batch is not None:
        raise UsageError(
            "--micro-batch and --virtual-ranks exclude each other",
            why="virtual ranks already say how a global batch is cut: one part, one forward",
            hint=f"leave out --micro-batch, and raise --virtual-ranks (now {parts}) for smaller parts",
        )
    if parts % world:
        raise PlanError(
            f"virtual ranks must be a multiple of the world size: {parts} = {parts // world} × {world} + {parts % world}",
            where=f"--virtual-ranks {parts}",
            why=f"each of the {world} processes does the same number of parts",
            hint=f"--virtual-ranks {(parts // world + 1) * world}",
        )
    return (
        f"virtual ranks: {parts // world} forward and backward passes a step on each process; 12 in one process take 4 to 8 "
        "times as long as one of the whole batch, small models pay most",  # CPU time: 0.8 ms 8 times, 2.3 ms 5, 7 ms 4
    )
