"""torch on NVIDIA's GPUs."""

from __future__ import annotations

import os

import torch

from hwal_torch.gpu import GpuTorchRuntime


class CudaTorchRuntime(GpuTorchRuntime):
    def identity(self, device: torch.device) -> str | None:
        """Its UUID; of a MIG instance CUDA tells that of the whole GPU on some drivers."""
        uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
        planned = self.job.plan.devices[device.index or 0]
        return None if uuid is None or planned.part_of is not None else f"GPU-{uuid}"

    def make_deterministic(self) -> str:
        """cuBLAS gives equal bits only with a workspace of its own for each stream; it reads this when it starts."""
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        return super().make_deterministic()
