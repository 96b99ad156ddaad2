"""How a prepared model gets from the host, where a checkpoint was read into it, to the devices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import nn

from hwal_torch.blocks import Blocks
from hwal_torch.strategy import Strategy

Send = Callable[[torch.Tensor, bool], torch.Tensor]
"""A host's tensor -> its copy on the devices; the flag says whether it has a parameter's shape, and is cut where those are."""


class Placed(Strategy):
    """A strategy that lays a model over the devices when it is prepared."""

    @abstractmethod
    def place(self, model: nn.Module, optimizers: list[torch.optim.Optimizer], blocks: Blocks) -> str | None:
        """Sends a model, and the state its optimizers have of it, from the host to the devices; what to say of it, or None."""


def place(model: nn.Module, optimizers: list[torch.optim.Optimizer], send: Send) -> None:
    """Sends a model and what optimizers have of it.

    The script's parameters stay the objects they are: tied ones stay tied, and optimizers keep their hold of them.
    """
    parameters = dict.fromkeys(model.parameters())
    for parameter in parameters:
        place_parameter(parameter, send)
    place_buffers(model, send)
    for optimizer in optimizers:  # what was read from a checkpoint; a new run has no state yet
        for owner, state in optimizer.state.items():
            for name, value in state.items() if owner in parameters else ():
                if goes_along(name, value):
                    state[name] = send(value, value.shape == owner.shape)


def goes_along(name: str, value: object) -> TypeGuard[torch.Tensor]:
    """Whether a value of an optimizer's state lies where its parameter does; torch has the count of steps on the host."""
    return isinstance(value, torch.Tensor) and name != "step"


def place_parameter(parameter: nn.Parameter, send: Send) -> None:
    """Gives a parameter, which stays the object it is, its copy on the devices for data."""
    torch.utils.swap_tensors(parameter, _like(parameter, send(parameter.detach(), True)))


def place_buffers(model: nn.Module, send: Send) -> None:
    """Puts copies on the devices in the place of a model's buffers; tied ones stay tied."""
    sent: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # buffers too may be tied; the old ones keep their ids
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                if id(buffer) not in sent:
                    sent[id(buffer)] = buffer, send(buffer, False)
                module._buffers[name] = sent[id(buffer)][1]


def equalize(model: nn.Module) -> None:
    """Gives a model that is still in the host's memory rank 0's values, as DDP does; every rank calls it."""
    if dist.is_initialized():
        for tensor in (*model.parameters(), *model.buffers()):
            flat: Any = tensor.data.reshape(-1).view(torch.uint8)  # gloo does not know every dtype
            dist.broadcast(flat, 0)
            tensor.data.copy_(flat.view(tensor.dtype).view(tensor.shape))


def _like(parameter: nn.Parameter, data: torch.Tensor) -> nn.Parameter:
    """A parameter of the same kind with other data."""
    new = nn.Parameter(data, parameter.requires_grad)
    vars(new).update(vars(parameter))
    return new
