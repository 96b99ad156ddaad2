"""The forward pass in the run's precision, and the loss scaler where it needs one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

PLAIN = nullcontext()
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """What a decided precision means for torch.

    Attributes:
        dtype: autocast's, or None where the forward runs in the model's own.
        scaler: for fp16, whose gradients would underflow; else None.
    """

    def __init__(self, name: str, device_type: str) -> None:
        self.dtype = DTYPES.get(name)
        self.scaler = torch.amp.GradScaler(device_type) if name == "fp16" else None
        self._device_type = device_type
        if device_type == "cuda":  # what is left in fp32 beside a narrower precision need not be more exact than it
            torch.set_float32_matmul_precision("highest" if name == "fp32" else "high")
            torch.backends.cudnn.allow_tf32 = name != "fp32"  # torch's own default would round the convolutions of fp32
        elif name == "tf32":
            torch.set_float32_matmul_precision("high")

    def autocast(self) -> AbstractContextManager[Any]:
        if self.dtype is None:
            return PLAIN
        return torch.autocast(self._device_type, dtype=self.dtype)
