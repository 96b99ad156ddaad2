"""Which strategy a run takes, once its models are known."""

from __future__ import annotations

import torch

from hwal.runtime import Job
from hwal.values import AUTO, Decision
from hwal_torch.ddp import DataParallel
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


def decide_strategy(job: Job) -> Decision:
    """The plan's strategy, resolved where it is "auto"."""
    asked = job.plan.strategy
    if asked.value != AUTO:
        return asked
    if job.world.size == 1:
        return Decision("single", "one process")
    return Decision("ddp", f"{job.world.size} ranks, a whole model on each")
