"""What a torch checkpoint holds.

    model.safetensors     plain weights under the model's own names (model-1.safetensors … for further models)
    config.json …         for transformers models: what from_pretrained wants beside them
    state.safetensors     tensors of optimizers, by parameter name, and of modules that their own state leaves out
    state.json            everything else of optimizers, schedulers and the loss scaler
    hwal.json             position and checksums (hwal.checkpoint)

Everything is saved whole and under names, so that it does not matter how many ranks, or which strategy, saved or loads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from hwal_torch.optim import group_names, names_of

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime

STATE = "state"
KERNEL = ("fused", "foreach", "capturable", "differentiable")  # how an optimizer computes, not what: stays this run's own


def stem(number: int) -> str:
    """What the files of a model's weights are called; `number` counts the prepared models from 0."""
    return f"model-{number}" if number else "model"


def own_class(model: nn.Module) -> type:
    """The class that a model was built as: fully_shard makes one of its own in front of it."""
    return next(cls for cls in type(model).__mro__ if not issubclass(cls, FSDPModule))


def weights(model: nn.Module) -> dict[str, list[str]]:
    """The tensors in a model's state: the name of each -> all names of it (several where weights are tied), itself first.

    The first name stands for a tied tensor, unless transformers' list says that it is the one that gives way.
    """
    give_way = getattr(model, "_tied_weights_keys", None) or ()
    groups: dict[Any, list[str]] = {}
    for name, tensor in state_of(model).items():
        groups.setdefault(_identity(tensor), []).append(name)
    ordered = (sorted(names, key=lambda name: name in give_way) for names in groups.values())
    return {names[0]: names for names in ordered}


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Name -> tensor of a model's state: the parameters and buffers themselves."""
    return {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, torch.Tensor)}


def _identity(tensor: torch.Tensor) -> Any:
    """Equal for tensors that are the same memory in the same shape."""
    if isinstance(tensor, DTensor) or tensor.is_meta or not tensor.data_ptr():
        return id(tensor)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def extra_state(model: nn.Module) -> dict[str, Any]:
    """What a model's state holds besides tensors (get_extra_state of its layers)."""
    return {name: value for name, value in model.state_dict().items() if not isinstance(value, torch.Tensor)}


def held(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Tensors of a model's modules that its state leaves out, buffers that are not persistent and plain attributes:
    full name, module, name in it."""
    for path, module in model.named_modules():
        attributes = [name for name, value in vars(module).items() if isinstance(value, torch.Tensor)]
        buffers = [name for name in module._non_persistent_buffers_set if module._buffers.get(name) is not None]
        for name in (*attributes, *sorted(buffers)):
            yield (f"{path}.{name}" if path else name), module, name


def document_of(rt: SharedTorchRuntime) -> dict[str, Any]:
    """All that is saved besides weights: a tree of plain values and tensors."""
    names = names_of(rt.models)
    rt.host_random.look()
    return {
        "models": [extra_state(model) for model in rt.models],
        "held": [_held_values(model, kept) for model, kept in zip(rt.models, rt.held, strict=True)],
        "optimizers": [_named(optimizer, group_names(optimizer, names)) for optimizer in rt.optimizers],
        "schedulers": [scheduler.state_dict() for scheduler in rt.schedulers],
        "gradients": rt.gradients.state_dict(),
        "reseed": rt.host_random.drawn,
    }


def _held_values(model: nn.Module, kept: frozenset[str]) -> dict[str, torch.Tensor]:
    """Of what modules hold now, what they held when they were prepared: a forward may leave activations there."""
    return {full: getattr(module, name) for full, module, name in held(model) if full in kept}


def _named(optimizer: torch.optim.Optimizer, groups: list[list[str]]) -> dict[str, Any]:
    """An optimizer's state_dict with parameter names where torch has numbers."""
    raw = optimizer.state_dict()
    name_of = {
        number: name
        for group, names in zip(raw["param_groups"], groups, strict=True)
        for number, name in zip(group["params"], names, strict=True)
    }
    return {
        "class": type(optimizer).__name__,
        "state": {name_of[number]: values for number, values in raw["state"].items()},
        "groups": [
            {**{key: value for key, value in group.items() if key not in KERNEL}, "params": names}
            for group, names in zip(raw["param_groups"], groups, strict=True)
        ],
    }
