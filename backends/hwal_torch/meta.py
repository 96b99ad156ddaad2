"""Models built without memory for their weights, which a checkpoint is about to fill: on torch's meta device.

A parameter becomes empty the moment that a module takes it, so that a whole set of random weights is never there. Buffers and
whatever else a module holds stay real. After prepare() has laid the model out, allocate() gives each parameter memory, under
FSDP that of this rank's part alone, and loading fills it tensor by tensor.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from hwal.errors import HwalError, ScriptError

LARGE = 256 * 2**20  # bytes of weights, from where on it is worth it
REMEDY = "build it under rt.scope(meta=False)"


class Empties:
    """The parameters that were built empty."""

    def __init__(self) -> None:
        self._places: list[tuple[weakref.ref[nn.Module], str]] = []

    @contextmanager
    def building(self) -> Iterator[None]:
        """Modules that are built meanwhile get empty parameters. Raises ScriptError where a constructor reads one."""
        known = WeakIdKeyDictionary()  # tied parameters stay tied

        def empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
            # What takes the place of another was loaded, by from_pretrained say; numbers without dimensions cost nothing.
            replaces = module._parameters.get(name) is not None
            if parameter is None or replaces or is_lazy(parameter) or parameter.is_meta or not parameter.dim():
                return None
            if parameter not in known:
                known[parameter] = _like(parameter, torch.device("meta"))
            self._places.append((weakref.ref(module), name))
            return known[parameter]

        handle = register_module_parameter_registration_hook(empty)  # type: ignore[arg-type]
        try:
            yield
        except HwalError:
            raise
        except Exception as error:
            if "meta" not in str(error):
                raise
            raise ScriptError(
                "a model reads its weights while it is built, and they are empty",
                where="rt.scope()",
                why=f"--resume of a large checkpoint fills them in rt.prepare(); {str(error).splitlines()[0]}",
                hint=REMEDY,
            ) from error
        finally:
            handle.remove()

    def check(self) -> None:
        """Raises ScriptError where a module is still empty, because it was not prepared."""
        places, self._places = self._places, []
        if places and any(map(_empty, places)):
            gc.collect()  # a model that was thrown away may linger
        for module, name in filter(_empty, places):
            raise ScriptError(
                f"a {type(module()).__name__} was built in rt.scope() and not prepared: its {name} is empty",
                where="rt.prepare",
                why="under --resume of a large checkpoint, models are built empty and filled by rt.prepare()",
                hint=f"give it to rt.prepare() too, or {REMEDY}",
            )


def _empty(place: tuple[weakref.ref[nn.Module], str]) -> bool:
    module = place[0]()
    parameter = None if module is None else module._parameters.get(place[1])
    return parameter is not None and parameter.is_meta


def allocate(model: nn.Module, device: torch.device) -> None:
    """Gives the empty parameters and buffers of a model memory on a device, of any content; tied ones stay tied."""
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # the empty one too, so that no other takes its id
    for module in model.modules():
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and tensor.is_meta:
                if id(tensor) not in made:
                    made[id(tensor)] = tensor, _like(tensor, device)
                setattr(module, name, made[id(tensor)][1])
    if made:
        model._apply(lambda tensor: tensor)  # modules that hold their parameters elsewhere too (RNNs, FSDP's units) look again


def _like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the same kind elsewhere, of any content."""
    data = torch.empty_like(tensor.detach(), device=device)
    if not isinstance(tensor, nn.Parameter):
        return data
    new: torch.Tensor = nn.Parameter(data, tensor.requires_grad)
    if not isinstance(tensor, DTensor) and type(tensor) is not nn.Parameter:
        new = data.as_subclass(type(tensor)).requires_grad_(tensor.requires_grad)
    vars(new).update(vars(tensor))
    return new
