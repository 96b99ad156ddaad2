"""torch on the toy, which lets the CPU do the arithmetic. Only workers import this."""

from __future__ import annotations

import torch

from hwal.runtime import Memory
from hwal_torch.runtime import SharedTorchRuntime


class ToyTorchRuntime(SharedTorchRuntime):
    def open_device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(None, None, None, "a toy has none to speak of")
