"""torch on AMD's GPUs: torch.cuda stands for HIP there."""

from __future__ import annotations

from hwal_torch.gpu import GpuTorchRuntime


class RocmTorchRuntime(GpuTorchRuntime):
    """As for NVIDIA's, over RCCL."""
