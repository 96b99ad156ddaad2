"""AMD's GPUs: ROCm, RCCL between ranks (torch calls it nccl), one process a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from hwal.finding import Finding
from hwal.host import Host
from hwal.topology import Device
from hwal.values import Caps, Decision, Probe, Target
from hwal_gpu.backend import UNTRIED, GpuBackend

EMULATED = {"bf16": "computed in fp32 before gfx90a (MI200): no faster than fp32"}


class RocmBackend(GpuBackend):
    name = "rocm"
    priority = 95
    extra = "rocm"
    resource = "amd.com/gpu"
    caps = Caps(
        frameworks=("torch", "keras"),
        collectives="nccl",
        sharding=True,
        pinned_memory=True,
        emulated=EMULATED,
        untried=UNTRIED.format(name="rocm"),
    )
    runtimes: ClassVar[Mapping[str, str]] = {
        "torch": "hwal_rocm.torch_runtime:RocmTorchRuntime",
        "keras": "hwal_rocm.keras_runtime:RocmKerasRuntime",
    }

    def probe(self, host: Host, asked: Target | None = None) -> Probe:
        from hwal_rocm.present import ABSENT, is_hinted  # workers import this package too, and never probe

        if not is_hinted(host):
            return Probe(self.name, "absent", ABSENT)
        from hwal_rocm.probe import probe

        return probe(host)

    def capture(self, text: str, where: str) -> Probe | None:
        from hwal_rocm.captures import read

        return read(text, where)

    def diagnose(self, host: Host, probe: Probe) -> Iterable[Finding]:
        from hwal_rocm.doctor import diagnose

        return diagnose(host, probe)

    def visible(self, devices: Sequence[Device], host: Host) -> dict[str, str]:
        from hwal_rocm.launch import visible_variables

        return visible_variables(devices, host.env)

    def allocator(self, devices: Sequence[Device], host: Host) -> dict[str, Decision]:
        from hwal_rocm.launch import allocator_variables

        return allocator_variables(host)


backend = RocmBackend()
