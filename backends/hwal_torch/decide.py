"""Which strategy a run takes, once its models are known."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from hwal.runtime import Job
from hwal.values import AUTO, Decision
from hwal_torch.blocks import find_blocks
from hwal_torch.ddp import DataParallel
from hwal_torch.estimate import decide, estimate, room_of
from hwal_torch.fsdp import FullyShard
from hwal_torch.ordered import Ordered
from hwal_torch.strategy import Single, Strategy


def make_strategy(name: str, job: Job, device: torch.device) -> Strategy:
    """The strategy of that name."""
    if job.settings.deterministic:
        assert job.settings.virtual_ranks is not None, "make_plan refuses anything else"
        return Ordered(name, job.world, job.settings.virtual_ranks)
    if name == Single.name:
        return Single()
    return DataParallel() if name == DataParallel.name else FullyShard(name, job, device)


def before_models(job: Job) -> Decision:
    """The plan's strategy, as far as it is known before there is a model: one left open is taken to be the simplest."""
    asked = job.plan.strategy
    if asked.value != AUTO:
        return asked
    return Decision("single", "one process") if job.world.size == 1 else Decision("ddp", "until the model is known")


def for_models(
    job: Job, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], device: torch.device
) -> tuple[Decision, str | None]:
    """The plan's strategy, decided by what training these models takes of the device where it was left open; and a warning.

    Every rank calls it."""
    if job.plan.strategy.value != AUTO or job.world.size == 1:
        return before_models(job), None
    if job.settings.deterministic:
        return Decision("ddp", "--deterministic keeps whole gradients"), None
    blocks = [find_blocks(model, job.plan.wrap) for model in models]
    room = _least(room_of(job), device)
    return decide(estimate(models, optimizers, blocks), room, job.world.size, job.caps.sharding)


def _least(room: int | None, device: torch.device) -> int | None:
    """The least of what the ranks have, so that all decide alike; None where one of them does not know."""
    least = torch.tensor(-1 if room is None else room, dtype=torch.int64, device=device)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return int(least) if least >= 0 else None
