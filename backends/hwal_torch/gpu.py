"""torch on GPUs that torch calls `cuda`: NVIDIA's, and AMD's under ROCm. One process a GPU."""

from __future__ import annotations

import torch

from hwal.errors import DeviceError
from hwal.runtime import Memory
from hwal.topology import Device
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
        self._check(device, plan.devices[place])
        return device

    def identity(self, device: torch.device) -> str | None:
        """What the driver calls the device, as Device.id does; None where torch does not tell."""
        return None

    def _check(self, device: torch.device, planned: Device) -> None:
        """Raises DeviceError where another device stands in the place of the planned one: a mask came too late."""
        found = self.identity(device)
        if found is not None and planned.id is not None and found != planned.id:
            raise DeviceError(
                f"{device} is {found}, and the plan has {planned.id} there",
                where=f"{planned.backend} {planned.index}",
                why="something has started the driver before hwal.start(), which then heeds no mask any more",
                hint="start by hwal train, which sets the mask first; or call hwal.start() before anything of torch.cuda",
            )

    def seed_device(self, seed: int) -> None:
        torch.cuda.manual_seed(seed)

    def memory(self) -> Memory:
        """Bytes that tensors take now and took at most, as torch's allocator counts them."""
        total = torch.cuda.get_device_properties(self.device).total_memory
        return Memory(torch.cuda.memory_allocated(self.device), torch.cuda.max_memory_allocated(self.device), total, "driver")
