"""NVIDIA's GPUs: CUDA, NCCL between ranks, one process a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from hwal.finding import Finding
from hwal.host import Host
from hwal.topology import Device
from hwal.values import Caps, Decision, Probe, Target
from hwal_gpu.backend import UNTRIED, GpuBackend

EMULATED = {"bf16": "computed in fp32 below Ampere: no faster than fp32, at half the memory for activations"}


class CudaBackend(GpuBackend):
    name = "cuda"
    priority = 100
    extra = "cuda"
    resource = "nvidia.com/gpu"
    caps = Caps(
        frameworks=("torch", "keras"),
        collectives="nccl",
        sharding=True,
        pinned_memory=True,
        emulated=EMULATED,
        untried=UNTRIED.format(name="cuda"),
    )
    runtimes: ClassVar[Mapping[str, str]] = {
        "torch": "hwal_cuda.torch_runtime:CudaTorchRuntime",
        "keras": "hwal_cuda.keras_runtime:CudaKerasRuntime",
    }

    def probe(self, host: Host, asked: Target | None = None) -> Probe:
        from hwal_cuda.present import ABSENT, cards, has_driver  # workers import this package too, and never probe

        if not has_driver(host) and not cards(host):
            return Probe(self.name, "absent", ABSENT)
        from hwal_cuda.probe import probe

        return probe(host)

    def capture(self, text: str, where: str) -> Probe | None:
        from hwal_cuda.captures import read

        return read(text, where)

    def diagnose(self, host: Host, probe: Probe) -> Iterable[Finding]:
        from hwal_cuda.doctor import diagnose

        return diagnose(host, probe)

    def visible(self, devices: Sequence[Device], host: Host) -> dict[str, str]:
        from hwal_cuda.launch import visible_variables

        return visible_variables(devices)

    def allocator(self, devices: Sequence[Device], host: Host) -> dict[str, Decision]:
        from hwal_cuda.launch import allocator_variables

        return allocator_variables(devices, host)


backend = CudaBackend()
