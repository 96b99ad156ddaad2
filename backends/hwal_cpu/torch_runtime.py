"""torch on CPUs: one process a NUMA node, gloo between them."""

from __future__ import annotations

import torch

from hwal.resident import peak_resident_bytes, resident_bytes
from hwal.runtime import Memory
from hwal_torch.runtime import SharedTorchRuntime


class CpuTorchRuntime(SharedTorchRuntime):
    def open_device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(resident_bytes(), peak_resident_bytes(), self.job.hardware.memory_bytes, "procfs")
