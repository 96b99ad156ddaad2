"""GpuBackend: what both vendors' backends declare alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hwal.backend import Backend
from hwal.host import Host
from hwal.topology import Device
from hwal.values import Decision, Picked, Plan, Probe, World

UNTRIED = (
    "this version of hwal has trained on no real GPU yet, only on stand-ins of the driver and of torch.cuda: "
    "hwal selftest --device {name} shows in minutes whether this one keeps the promises"
)


class GpuBackend(Backend):
    """GPUs that a mask shows and numbers: one process each, and one mask for all ranks, which pick by their local rank.

    Attributes:
        resource: what Kubernetes calls one GPU.
    """

    resource: ClassVar[str]

    def unnamed(self, probe: Probe, count: int | None = None) -> Picked:
        """Whole GPUs of the fastest kind that nobody else uses: the best `count` of them, or all, in their best ring."""
        from hwal.order import for_a_run  # workers import this package too, and never choose

        return for_a_run(probe.devices, probe.links, count)

    def environment(self, plan: Plan) -> dict[str, str]:
        from hwal.plan.keras import GPU_VARIABLES

        return dict(GPU_VARIABLES) if plan.framework.value == "keras" else {}

    def rank_environment(self, plan: Plan, world: World, host: Host) -> dict[str, str]:
        """The mask, equal on all ranks: with different masks peers cannot reach each other's memory."""
        return self.visible(plan.devices, host)

    def tuning(self, plan: Plan, probe: Probe, host: Host) -> dict[str, Decision]:
        """What torch's allocator and NCCL, or RCCL, are told."""
        if plan.framework.value != "torch":
            return {}
        from hwal_gpu import nccl

        return self.allocator(plan.devices, host) | nccl.variables(plan, probe.links, host)

    def allocator(self, devices: Sequence[Device], host: Host) -> dict[str, Decision]:
        """What torch's allocator is told for these devices."""
        return {}

    def resources(self, plan: Plan) -> dict[str, str]:
        return {self.resource: str(len(plan.devices))}
