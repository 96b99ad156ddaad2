"""torch on NVIDIA's GPUs."""

from __future__ import annotations

import os

from hwal_torch.gpu import GpuTorchRuntime


class CudaTorchRuntime(GpuTorchRuntime):
    def make_deterministic(self) -> str:
        """cuBLAS gives equal bits only with a workspace of its own for each stream; it reads this when it starts."""
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        return super().make_deterministic()
