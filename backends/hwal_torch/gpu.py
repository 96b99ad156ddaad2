"""torch on GPUs that torch calls `cuda`: NVIDIA's, and AMD's under ROCm. One process a GPU."""

from __future__ import annotations

import torch

from hwal.errors import DeviceError
from hwal.runtime import Memory
from hwal_torch.runtime import SharedTorchRuntime


class GpuTorchRuntime(SharedTorchRuntime):
    """The common part of both vendors' runtimes: the device by its place in the plan, its generator, its memory."""

    def open_device(self) -> torch.device:
        """Every rank sees the plan's devices in the plan's order, and takes the one that stands where its own does."""
        plan = self.job.plan
        place = [device.index for device in plan.devices].index(self.job.process.devices[0])
        count = torch.cuda.device_count()
        if place >= count:
            build = torch.version.cuda or torch.version.hip or "none: this build is for CPUs"
            raise DeviceError(
                f"torch sees {count} GPUs, the plan has {len(plan.devices)}",
                where=f"{plan.backend} {self.job.process.devices[0]}",
                why=f"torch {torch.__version__} was built for {build}",
                hint="hwal devices; hwal doctor",
            )
        device = torch.device("cuda", place)
        torch.cuda.set_device(device)
        return device

    def seed_device(self, seed: int) -> None:
        torch.cuda.manual_seed(seed)

    def memory(self) -> Memory:
        """Bytes that tensors take now and took at most, as torch's allocator counts them."""
        total = torch.cuda.get_device_properties(self.device).total_memory
        return Memory(torch.cuda.memory_allocated(self.device), torch.cuda.max_memory_allocated(self.device), total, "driver")
