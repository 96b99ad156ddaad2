"""torch on imaginary devices: the arithmetic is done by the CPU, everything else as on real ones.

To a plug-in's author: this is all that a backend must say about torch. open_device returns torch's handle of this rank's
device (`self.job.process.devices` are the indices the plan gave it); memory says what is known of its memory. Override
`seed`, `place`, `to_device` or `fused_optimizers` where the hardware wants something of its own.
"""

from __future__ import annotations

import torch

from hwal.runtime import Memory
from hwal_torch.runtime import SharedTorchRuntime


class NullTorchRuntime(SharedTorchRuntime):
    def open_device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(None, None, self.job.hardware.memory_bytes, "imaginary")
