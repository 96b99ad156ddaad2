"""What training takes of a device's memory, before a batch is seen: the arithmetic behind `--strategy auto`.

Parameters, gradients and optimizer state are counted. Activations are unknown: a quarter of the device is kept for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hwal.display import size
from hwal.runtime import Job
from hwal.values import Decision
from hwal_torch.blocks import Blocks

FOR_STATE = 0.75  # of a device; the rest is for activations, and for what the framework itself takes

Group = Mapping[str, Any]


def _sgd(group: Group) -> float:
    return float(bool(group.get("momentum")))


def _adam(group: Group) -> float:
    return 3.0 if group.get("amsgrad") else 2.0


def _rmsprop(group: Group) -> float:
    return 1.0 + bool(group.get("momentum")) + bool(group.get("centered"))


STATE: Mapping[str, Callable[[Group], float]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adam,
    "NAdam": _adam,
    "RAdam": _adam,
    "Adamax": _adam,
    "RMSprop": _rmsprop,
    "Adafactor": lambda group: float(group.get("beta1") is not None),  # besides a row and a column of each matrix
    **dict.fromkeys(("Adagrad", "ASGD", "Lion", "Muon"), lambda group: 1.0),
    **dict.fromkeys(("Rprop", "Adadelta"), lambda group: 2.0),
    **dict.fromkeys(("Adam8bit", "AdamW8bit", "PagedAdam8bit", "PagedAdamW8bit"), lambda group: 0.5),  # two bytes beside four
}
"""Class of optimizer -> how many times the bytes of its parameters it keeps, for one group of them."""
UNKNOWN = 2.0  # times, for classes that are not above: as Adam


@dataclass(frozen=True)
class Need:
    """Bytes that one process holds while it trains a whole model.

    Attributes:
        optimizer: its state; `keeper` names the optimizers, and says so where their share is a guess.
        largest: parameters and gradients of the largest part that FSDP gathers at one time.
    """

    parameters: int
    gradients: int
    optimizer: int
    keeper: str
    largest: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer

    def sharded(self, world: int) -> int:
        """Bytes of one rank under fsdp:full: its shard of everything, and the one part that is gathered."""
        return -(-self.total // world) + (self.largest if world > 1 else 0)

    def __str__(self) -> str:
        """`parameters 1.2 GiB + gradients 1.2 GiB + AdamW 2.4 GiB = 4.8 GiB`."""
        parts = f"parameters {size(self.parameters)} + gradients {size(self.gradients)}"
        return f"{parts} + {self.keeper} {size(self.optimizer)} = {size(self.total)}"


def estimate(models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], blocks: Sequence[Blocks] = ()) -> Need:
    """The need of training `models` by `optimizers`; `blocks` are those of each model, the units of FSDP."""
    parameters = list({id(p): p for model in models for p in model.parameters()}.values())
    kept = sum(_kept(optimizer) for optimizer in optimizers)
    keeper = " and ".join(dict.fromkeys(map(_name, optimizers))) or "no optimizer"
    return Need(
        _bytes(parameters), _bytes(p for p in parameters if p.requires_grad), round(kept), keeper, _largest(models, blocks)
    )


def decide(need: Need, room: int | None, world: int, sharding: bool) -> tuple[Decision, str | None]:
    """ddp where a whole model fits on a device, else fsdp:full; and a warning where that will not fit either.

    Args:
        room: bytes of device memory for one process; None where unknown. sharding: whether the backend can shard.
    """
    if room is None:
        return Decision("ddp", f"{need}; how much memory the device has is unknown"), None
    sum_ = f"{need} of {size(room)}, a quarter of it kept for activations"
    if fits(need.total, room):
        return Decision("ddp", f"{sum_}: fits"), None
    if not sharding:
        return Decision("ddp", f"{sum_}: does not fit, and this backend cannot shard"), _tight(need.total, room, "ddp")
    share = need.sharded(world)
    why = f"{sum_}: does not fit; 1/{world} of it and the largest block make {size(share)}"
    return Decision("fsdp:full", why), None if fits(share, room) else _tight(share, room, f"fsdp:full at {world} ranks")


def fits(needed: int, room: int) -> bool:
    """Whether that many bytes leave a quarter of the device to activations."""
    return needed <= FOR_STATE * room


def room_of(job: Job) -> int | None:
    """Bytes of device memory for this process: an equal part where several share a device. None where unknown."""
    total = job.hardware.memory_bytes
    sharers = sum(job.hardware.index in process.devices for process in job.plan.processes)
    return None if total is None else total // sharers


def _tight(needed: int, room: int, how: str) -> str:
    return (
        f"memory: {how} needs {size(needed)} of {size(room)} before any activation: it may run out. More devices, +offload "
        "(fsdp strategies), --grad-checkpoint and a smaller --micro-batch help"
    )


def _kept(optimizer: torch.optim.Optimizer) -> float:
    times = _row(optimizer) or (lambda group: UNKNOWN)
    return sum(times(group) * _bytes(p for p in group["params"] if p.requires_grad) for group in optimizer.param_groups)


def _row(optimizer: torch.optim.Optimizer) -> Callable[[Group], float] | None:
    """The row of the nearest class of the optimizer that is in the table."""
    return next((STATE[cls.__name__] for cls in type(optimizer).__mro__ if cls.__name__ in STATE), None)


def _name(optimizer: torch.optim.Optimizer) -> str:
    return type(optimizer).__name__ + ("" if _row(optimizer) else " (taken to keep as much as Adam)")


def _bytes(parameters: Iterable[torch.Tensor]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)


def _largest(models: Sequence[nn.Module], blocks: Sequence[Blocks]) -> int:
    """Parameters and gradients of the largest unit; what lies in no block is the model's own unit."""
    units = [list(block.parameters()) for found in blocks for block in found.outermost]
    taken = {id(p) for unit in units for p in unit}
    units += [[p for p in model.parameters() if id(p) not in taken] for model in models]
    return max((_bytes(unit) + _bytes(p for p in unit if p.requires_grad) for unit in units), default=0)
