"""AMD's GPUs: ROCm, RCCL between ranks (torch calls it nccl), one process a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from hwal.backend import Backend
from hwal.finding import Finding
from hwal.host import Host
from hwal.topology import Device
from hwal.values import Caps, Plan, Probe, Target, World

EMULATED = {"bf16": "computed in fp32 before gfx90a (MI200): no faster than fp32"}


class RocmBackend(Backend):
    name = "rocm"
    priority = 95
    extra = "rocm"
    caps = Caps(frameworks=("torch",), collectives="nccl", sharding=True, pinned_memory=True, emulated=EMULATED)
    runtimes: ClassVar[Mapping[str, str]] = {"torch": "hwal_rocm.torch_runtime:RocmTorchRuntime"}

    def probe(self, host: Host, asked: Target | None = None) -> Probe:
        from hwal_rocm.present import ABSENT, is_hinted  # workers import this package too, and never probe

        if not is_hinted(host):
            return Probe(self.name, "absent", ABSENT)
        from hwal_rocm.probe import probe

        return probe(host)

    def capture(self, text: str, where: str) -> Probe | None:
        from hwal_rocm.captures import read

        return read(text, where)

    def unnamed(self, probe: Probe) -> tuple[Device, ...]:
        """Whole GPUs of the fastest kind, in their best ring."""
        from hwal.order import for_a_run

        return for_a_run(probe.devices, probe.links)

    def diagnose(self, host: Host, probe: Probe) -> Iterable[Finding]:
        from hwal_rocm.doctor import diagnose

        return diagnose(host, probe)

    def rank_environment(self, plan: Plan, world: World, host: Host) -> dict[str, str]:
        """All ranks get the same mask, and pick by local rank: with different masks peers cannot reach each other."""
        return self.visible(plan.devices, host)

    def visible(self, devices: Sequence[Device], host: Host) -> dict[str, str]:
        from hwal_rocm.launch import visible_variables

        return visible_variables(devices, host.env)

    def resources(self, plan: Plan) -> dict[str, str]:
        return {"amd.com/gpu": str(len(plan.devices))}


backend = RocmBackend()
