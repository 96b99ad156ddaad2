"""Strategies of one program over all devices (SPMD): a process has them all, and XLA's compiler adds the communication.

`ddp` keeps a whole copy of the parameters on each device, `fsdp:full` cuts parameters, gradients and the optimizer's state
(FSDPv2). Either way the rows of a batch are cut over the devices and the script sees one device, so that nothing is left
to bring together here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hwal_torch.blocks import Blocks, counted
from hwal_torch.strategy import Single
from hwal_tpu.placing import Placed, place
from hwal_tpu.xla import Mesh, barrier_backward


class Spmd(Single, Placed):
    """A whole copy on each device."""

    def __init__(self, name: str, mesh: Mesh) -> None:
        self.name = name
        self.mesh = mesh

    def place(self, model: nn.Module, optimizers: list[torch.optim.Optimizer], blocks: Blocks) -> str | None:
        place(model, optimizers, lambda tensor, shaped: self.mesh.send([tensor], self.cuts and shaped)[0])
        return None

    @property
    def cuts(self) -> bool:
        """Whether parameters are cut."""
        return False


class FullyShard(Spmd):
    """Parameters, gradients and the optimizer's state in rows, each device its own; a block is gathered when it runs."""

    def place(self, model: nn.Module, optimizers: list[torch.optim.Optimizer], blocks: Blocks) -> str | None:
        super().place(model, optimizers, blocks)
        for block in blocks.outermost:
            barrier_backward(block)
            block.register_forward_hook(self._cut_output)
        return f"sharded by SPMD: {counted(blocks.outermost)}" if blocks.outermost else f"sharded by SPMD: {blocks.why}"

    @property
    def cuts(self) -> bool:
        return True

    def _cut_output(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        """The compiler must gather a block's parameters, not what flows between the blocks."""
        first = output[0] if isinstance(output, tuple | list) and output else output
        if isinstance(first, torch.Tensor) and first.device.type == "xla":
            self.mesh.cut(first)
