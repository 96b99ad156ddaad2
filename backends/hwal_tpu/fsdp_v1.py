"""FSDP v1: PyTorch/XLA's own for a process a chip (XlaFullyShardedDataParallel), behind the script's model.

    fsdp:full      a block's parameters are dropped after its forward, and gathered again (ZeRO-3)
    fsdp:grad-op   they stay gathered from forward to backward (ZeRO-2)

Each parameter is cut in rows, as FSDP2 cuts it, and not flattened as v1 does by itself: so every rank writes its own rows of
a checkpoint that is the same as anywhere else. The script's model stays the object it is. Its parameters are this rank's
rows from now on, filled up with zeros where ranks have unequally many; while a forward runs, its modules have them whole.

Collectives are part of each forward and backward, so that ranks run equally many (ghosts make up for rows). Where ranks have
unequally many rows in them, their programs differ in shapes; v1's own differ by rank in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

from hwal.errors import ScriptError
from hwal_torch.blocks import Blocks, counted
from hwal_torch.channel import Channel
from hwal_torch.forward import Forward
from hwal_torch.meta import allocate
from hwal_torch.optim import group_names, names_of
from hwal_torch.shards import sharded
from hwal_torch.strategy import Sharding, not_brought_together, refuse_shared
from hwal_torch.units import Unit
from hwal_tpu import xla
from hwal_tpu.placing import Placed, equalize, goes_along, place_buffers, place_parameter

Tensors = Mapping[str, Mapping[str, torch.Tensor]]  # name of a set -> name of a tensor -> tensor


class FullyShardV1(Sharding, Placed):
    """One of the two strategies, by its name."""

    equal = True

    def __init__(self, name: str, precision: str, channel: Channel) -> None:
        self.name = name
        self._precision = precision
        self._channel = channel
        self._models: list[nn.Module] = []
        self._units: list[XlaFullyShardedDataParallel] = []
        self._numbers: list[nn.Parameter] = []  # parameters without dimensions, which cannot be cut
        self._shapes: dict[int, torch.Size] = {}  # id of this rank's rows -> the shape of the whole

    # before the loop

    def shard(self, model: nn.Module, blocks: Blocks) -> None:
        """Cuts nothing yet: a checkpoint is read into the whole first."""
        refuse_shared(model, self._models)
        for name, parameter in model.named_parameters():
            if parameter.dtype != torch.float32:
                raise ScriptError(
                    f"{name} is {str(parameter.dtype).removeprefix('torch.')}, and FSDP v1 shards fp32 alone",
                    where=f"--strategy {self.name}",
                    hint="build the model in fp32 (--precision decides what it computes in); or --strategy ddp",
                )
        allocate(model, torch.device("cpu"))
        self._models.append(model)

    def install(self, model: nn.Module) -> None:
        equalize(model)

    def place(self, model: nn.Module, optimizers: list[torch.optim.Optimizer], blocks: Blocks) -> str | None:
        before = [
            (module, name, parameter)
            for module in model.modules()
            for name, parameter in module.named_parameters(recurse=False)
        ]
        for parameter in dict.fromkeys(parameter for _, _, parameter in before if not parameter.dim()):
            place_parameter(parameter, _send)
            parameter._is_sharded = True  # type: ignore[attr-defined]  # v1 leaves alone what it takes to be cut
            self._numbers.append(parameter)
        inner: list[XlaFullyShardedDataParallel] = []
        for block in blocks.modules[::-1]:  # from the innermost outwards
            inner.append(self._wrap(block, ()))
        self._wrap(model, inner)
        place_buffers(model, _send)
        new = {id(parameter): module._parameters[name] for module, name, parameter in before}
        for optimizer in optimizers:
            self._repoint(optimizer, new)
        units = f"{counted(blocks.outermost)}" if blocks.outermost else blocks.why
        return f"sharded by FSDP v1, over {self._channel.size} ranks: {units}"

    def _wrap(self, part: nn.Module, inner: Any) -> XlaFullyShardedDataParallel:
        """Makes a unit of what in `part` is whole yet."""
        stem = _Stem(part, inner)
        unit = XlaFullyShardedDataParallel(
            stem,
            reshard_after_forward="grad-op" not in self.name,
            shard_param_on_dim_0=True,
            # Its patch of nn.Linear frees the gathered weight early, and fails where autocast has cast it.
            _use_xla_patched_linear=self._precision == "fp32",
        )
        unit.gradient_predivide_factor = unit.gradient_postdivide_factor = 1.0  # sums, not means
        stem.original = part.forward
        _Through(part, unit)
        places = [
            (module, name, rows) for (_, module, name), rows in zip(unit.full_param_infos, unit.sharded_params, strict=True)
        ]
        rows_at = {(id(module), name): rows for module, name, rows in places}
        places += [
            (module, name, rows_at[id(first), first_name])
            for _, _, module, name, first, first_name in unit.shared_full_param_infos
        ]
        for module, name, rows in places:  # v1 has hung the whole on the module, in front of what is registered by this name
            module._parameters[name] = rows
            self._shapes[id(rows)] = rows._orig_size
        self._units.append(unit)
        return unit

    def _repoint(self, optimizer: torch.optim.Optimizer, new: Mapping[int, Any]) -> None:
        """Gives an optimizer this rank's rows in place of whole parameters, and cuts the state that it has of them."""
        for group in optimizer.param_groups:
            for i, old in enumerate(group["params"]):
                rows = new.get(id(old), old)
                group["params"][i] = rows
                state = optimizer.state.pop(old, {})
                for key, value in state.items():
                    if not goes_along(key, value):
                        continue
                    if value.dim():
                        self._check_shape(optimizer, value, old)
                        value = self._rows(value)
                    state[key] = _send(value, True)
                if state:
                    optimizer.state[rows] = state

    def _rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's rows of a whole tensor, with zeros where it has fewer than others."""
        first, last = self._span(tensor.shape)
        rows = torch.zeros(self._per_rank(tensor.shape), *tensor.shape[1:], dtype=tensor.dtype)
        rows[: last - first] = tensor[first:last]
        return rows

    def _per_rank(self, shape: torch.Size) -> int:
        return -(-shape[0] // self._channel.size)

    def _span(self, shape: torch.Size) -> tuple[int, int]:
        """The rows of a whole tensor that this rank has: from, to."""
        per = self._per_rank(shape)
        return min(xla.ordinal() * per, shape[0]), min((xla.ordinal() + 1) * per, shape[0])

    # in the loop

    def sync(self, unit: Unit) -> None:
        self.training = True

    def flags(self) -> list[float]:
        return [float(parameter.grad is not None) for parameter in self._numbers]

    def reduced(self, flags: list[float]) -> None:
        xla.add_up_gradients(self._numbers, flags)

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        numbers = set(map(id, self._numbers))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) not in self._shapes and id(parameter) not in numbers:
                    raise not_brought_together("its parameter was not prepared")
                for value in optimizer.state.get(parameter, {}).values():
                    if isinstance(value, torch.Tensor) and value.dim():
                        self._check_shape(optimizer, value, parameter)

    def _check_shape(self, optimizer: torch.optim.Optimizer, value: torch.Tensor, parameter: torch.Tensor) -> None:
        if value.shape != parameter.shape:
            raise ScriptError(
                f"{type(optimizer).__name__} looks across the rows of a parameter, and each rank has some of them",
                where=f"--strategy {self.name}",
                why=f"its state of a parameter of shape {tuple(parameter.shape)} has shape {tuple(value.shape)}",
                hint="another optimizer (AdamW, SGD); or --strategy ddp",
            )

    def clip(self, parameters: list[nn.Parameter], largest: float) -> None:
        used = [(parameter, gradient) for parameter in parameters if (gradient := parameter.grad) is not None]
        cut = [gradient.square().sum() for parameter, gradient in used if id(parameter) in self._shapes]
        total = torch.stack(cut).sum() if cut else torch.zeros((), device="xla")
        xla.add_up([total])
        total = torch.stack([total, *(g.square() for p, g in used if id(p) not in self._shapes)]).sum().sqrt()
        torch._foreach_mul_([gradient for _, gradient in used], torch.clamp(largest / (total + 1e-6), max=1.0))

    def rest(self) -> None:
        for unit in self._units:
            if unit.has_full_params:
                unit._free_full_params()

    # saves

    def as_parts(self, fetched: Tensors, sets: Tensors, optimizers: list[torch.optim.Optimizer]) -> Tensors:
        """What a checkpoint is made of: of each tensor that is cut, in place of the host's copy of this rank's rows, the whole
        of which they are a part. `sets`: the tensors that were fetched."""
        shapes = {name: dict(self._cut_in(tensors)) for name, tensors in sets.items()}
        for key, shape in self._state_shapes(optimizers):
            for name, tensors in sets.items():
                if key in tensors:
                    shapes[name][key] = shape
        return {
            name: {
                key: self._part(value, shapes[name][key]) if key in shapes[name] else value for key, value in tensors.items()
            }
            for name, tensors in fetched.items()
        }

    def _cut_in(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Size]]:
        return ((key, self._shapes[id(tensor)]) for key, tensor in tensors.items() if id(tensor) in self._shapes)

    def _state_shapes(self, optimizers: list[torch.optim.Optimizer]) -> Iterator[tuple[str, torch.Size]]:
        """The names by which a checkpoint has optimizers' state of parameters that are cut, and the shapes of the whole."""
        names = names_of(self._models)
        for number, optimizer in enumerate(optimizers):
            groups = group_names(optimizer, names)
            for group, keys in zip(optimizer.param_groups, groups, strict=True):
                for parameter, name in zip(group["params"], keys, strict=True):
                    for key, value in optimizer.state.get(parameter, {}).items():
                        if id(parameter) in self._shapes and isinstance(value, torch.Tensor) and value.dim():
                            yield f"/optimizers/{number}/state/{name}/{key}", self._shapes[id(parameter)]

    def _part(self, rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        first, last = self._span(shape)
        rows = rows[: last - first]
        return rows if self._mesh is None else sharded(rows, shape, self._mesh, [Shard(0)])

    @cached_property
    def _mesh(self) -> DeviceMesh | None:
        """The ranks in the order of their ordinals, which is that of the rows they have; None in a world of one."""
        if self._channel.size == 1:
            return None
        ordinals = self._channel.gather(xla.ordinal())
        return DeviceMesh("cpu", sorted(range(len(ordinals)), key=ordinals.__getitem__))  # the rank at each ordinal


class _Stem(nn.Module):
    """What FSDP wraps: a part of the model under the forward it had before; the outermost knows the units within."""

    def __init__(self, part: nn.Module, inner: Any) -> None:
        super().__init__()
        self.inner = nn.ModuleList(inner)
        self.part = part
        self.original = part.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs)


class _Through(Forward):
    """By way of FSDP, which gathers the part's parameters."""

    def __init__(self, module: nn.Module, unit: nn.Module) -> None:
        super().__init__(module)
        self.unit = unit

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.unit(*args, **kwargs)


def _send(tensor: torch.Tensor, _shaped: bool) -> torch.Tensor:
    return xla.send([tensor])[0]
