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
from hwal_tpu.xla import Mesh, barrier_backward


class Spmd(Single):
    """A whole copy on each device."""

    def __init__(self, name: str, mesh: Mesh) -> None:
        self.name = name
        self.mesh = mesh

    def place(self, model: nn.Module, optimizers: list[torch.optim.Optimizer], blocks: Blocks) -> str | None:
        """Sends a model, and the state its optimizers have of it, from the host to the devices; what to say of it, or None.

        The script's parameters stay the objects they are: tied ones stay tied, and optimizers keep their hold of them.
        """
        cut = self.cuts
        parameters = dict.fromkeys(model.parameters())
        for parameter in parameters:
            (data,) = self.mesh.send([parameter.detach()], cut)
            torch.utils.swap_tensors(parameter, _like(parameter, data))
        sent: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # buffers too may be tied; the old ones keep their ids
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    if id(buffer) not in sent:
                        sent[id(buffer)] = buffer, self.mesh.send([buffer], False)[0]
                    module._buffers[name] = sent[id(buffer)][1]
        for optimizer in optimizers:  # what was read from a checkpoint; a new run has no state yet
            for owner, state in optimizer.state.items():
                for name, value in state.items() if owner in parameters else ():
                    if isinstance(value, torch.Tensor) and name != "step":  # which torch's optimizers count on the host
                        state[name] = self.mesh.send([value], cut and value.shape == owner.shape)[0]
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


def _like(parameter: nn.Parameter, data: torch.Tensor) -> nn.Parameter:
    """A parameter of the same kind with other data."""
    new = nn.Parameter(data, parameter.requires_grad)
    vars(new).update(vars(parameter))
    return new
