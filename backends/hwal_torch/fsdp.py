"""FSDP2: parameters, gradients and optimizer state sharded over the ranks, gathered block by block while a forward or
backward needs them. It is torch's `fully_shard`, by the same code on every device whose ranks can talk.

    fsdp:full               a block's parameters are dropped after its forward, and gathered again (FULL_SHARD, ZeRO-3)
    fsdp:grad-op            they stay gathered from forward to backward (SHARD_GRAD_OP, ZeRO-2)
    fsdp:hybrid, …-grad-op  sharded within each machine, replicated over machines (HYBRID_SHARD, HYBRID_SHARD_ZERO2)
    …+offload               shards, and the optimizer's work on them, stay in the host's memory
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from hwal.errors import ScriptError
from hwal.runtime import Job
from hwal_torch.blocks import Blocks
from hwal_torch.meta import allocate
from hwal_torch.shards import scale
from hwal_torch.strategy import Sharding, not_brought_together, refuse_shared
from hwal_torch.units import Unit

OFFLOAD = "+offload"
SHARES_UNUSED = hasattr(FSDPModule, "set_reduce_scatter_unused_params")  # torch 2.8 has it not

DIFFERENT_BLOCKS = ("collective mismatch", "op.preamble.length")  # gloo's words for two ranks that do different things
ON_SHARDS = ("mixed torch.Tensor and DTensor", "DTensor", "sharding strategy", "Sharding propagation", *DIFFERENT_BLOCKS)
"""What stands in torch's errors where sharding is the cause."""


class FullyShard(Sharding):
    """One of the fsdp strategies, by its name.

    Every forward gathers parameters, so all ranks must run equally many: those short of rows run ghosts.
    """

    equal = True

    def __init__(self, name: str, job: Job, device: torch.device) -> None:
        self.name = name
        self._job = job
        self._device = device
        self._mesh: DeviceMesh | None = None
        self._models: list[nn.Module] = []
        self._numbers: list[nn.Parameter] = []  # parameters without dimensions, which cannot be cut
        self._used = Used()

    # before the loop

    def shard(self, model: nn.Module, blocks: Blocks) -> None:
        refuse_shared(model, self._models)
        _refuse_sparse(model, self.name)
        mesh = self._mesh = self._mesh or self._make_mesh()
        numbers = [parameter for parameter in model.parameters() if parameter.dim() == 0]
        offload = self.name.endswith(OFFLOAD)
        parts = [*zip(blocks.names, blocks.modules, strict=True)][::-1]  # from the innermost outwards
        for name, part in (*parts, (type(model).__name__, model)):
            self._refuse_mixed(part, name)
            self._equalize(part)
            fully_shard(
                part,
                mesh=mesh,
                reshard_after_forward="grad-op" not in self.name,
                offload_policy=CPUOffloadPolicy(pin_memory=self._job.caps.pinned_memory) if offload else OffloadPolicy(),
                ignored_params=set(numbers),
            )
        allocate(model, torch.device("cpu") if offload else self._device)
        for unit in units_of(model):
            unit.set_gradient_divide_factor(1.0)  # sums, not means
            unit.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it reduces
        if SHARES_UNUSED:
            model.set_reduce_scatter_unused_params(True)  # type: ignore[operator]  # ranks may use different parameters
        if hasattr(model, "generate"):
            register_fsdp_forward_method(model, "generate")
        self._models.append(model)
        self._numbers += numbers

    def _equalize(self, part: nn.Module) -> None:
        """Gives every rank rank 0's values, as DDP does, before each keeps a shard of its own."""
        for tensor in (*part.parameters(), *part.buffers()):
            if not isinstance(tensor, DTensor) and not tensor.is_meta:
                moved = tensor.data.to(self._device)
                flat = moved.reshape(-1).view(torch.uint8)  # gloo does not know every dtype
                dist.broadcast(flat, 0)
                tensor.data = flat.view(moved.dtype).view(moved.shape)  # in plain order: channels_last cannot be cut

    def _refuse_mixed(self, part: nn.Module, name: str) -> None:
        """Raises ScriptError for a unit whose parameters are of several dtypes: they are gathered as one."""
        dtypes = sorted({str(p.dtype) for p in part.parameters() if p.requires_grad and p.dim() and not isinstance(p, DTensor)})
        if len(dtypes) > 1:
            raise ScriptError(
                f"{name} holds parameters of {' and '.join(dtypes)}",
                where=f"--strategy {self.name}",
                why="FSDP gathers the parameters of a block together, in one dtype",
                hint="build the model in one dtype (--precision decides what it computes in); or --strategy ddp",
            )

    def cost(self) -> str | None:
        if SHARES_UNUSED:
            return None
        return (
            f"torch {torch.__version__}: under {self.name} all ranks must use the same parameters in a step; not so with 2.13"
        )

    def _make_mesh(self) -> DeviceMesh:
        world = self._job.world
        if "hybrid" in self.name and world.nodes > 1:
            return init_device_mesh(self._device.type, (world.nodes, world.local_size), mesh_dim_names=("dp", "fsdp"))
        return init_device_mesh(self._device.type, (world.size,), mesh_dim_names=("fsdp",))

    def install(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            self._used.add(parameter)
        for unit in units_of(model):
            self._used.watch(unit)

    # in the loop

    def sync(self, unit: Unit) -> None:
        self.training = True
        self._used.counting = unit.weight > 0
        if unit.first:
            self._used.clear()
        for model in self._models:
            # Shards are summed after every micro-batch, or each rank would hold whole gradients; machines after the last.
            model.set_requires_all_reduce(unit.last)  # type: ignore[operator]
            model.set_is_last_backward(unit.last)  # type: ignore[operator]

    def flags(self) -> list[float]:
        return self._used.flags()

    def reduced(self, flags: list[float]) -> None:
        for dtype in {parameter.dtype for parameter in self._numbers}:
            numbers = [parameter for parameter in self._numbers if parameter.dtype == dtype]
            gradients = torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in numbers])
            dist.all_reduce(gradients)
            for parameter, gradient in zip(numbers, gradients, strict=True):
                parameter.grad = gradient.clone()
        for parameter, used in zip(self._used.parameters, flags, strict=True):
            if not used:
                parameter.grad = None

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter not in self._used:
                    raise not_brought_together("its parameter was not prepared")

    def unscale(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        groups = optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        # torch tells by the first gradient alone whether an overflow must be made known to other ranks.
        optimizer.param_groups = [{"params": sorted(parameters, key=lambda parameter: not isinstance(parameter, DTensor))}]
        try:
            scaler.unscale_(optimizer)
        finally:
            optimizer.param_groups = groups

    def clip(self, parameters: list[nn.Parameter], largest: float) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        cut = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
        plain = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]
        norms = [nn.utils.get_total_norm(cut).full_tensor()] if cut else []  # type: ignore[attr-defined]
        norms += [nn.utils.get_total_norm(plain)] if plain else []
        if norms:
            total = torch.stack([norm.to(norms[0].device) for norm in norms]).norm()
            scale([*cut, *plain], torch.clamp(largest / (total + 1e-6), max=1.0))

    def explain(self, error: BaseException | None, optimizer: torch.optim.Optimizer | None = None) -> ScriptError | None:
        text = str(error)
        if not isinstance(error, RuntimeError) or not any(sentence in text for sentence in ON_SHARDS):
            return None
        if any(sentence in text for sentence in DIFFERENT_BLOCKS):
            what = "the ranks did not call the same blocks of the model"
            hint = "call every block in every forward; or --strategy ddp, where ranks may differ"
        elif optimizer is None:
            what = "a parameter was used that is sharded over the ranks"
            hint = "call model(x), which gathers them; not its parts, nor its parameters; or --strategy ddp"
        else:
            what = f"{type(optimizer).__name__} cannot work on sharded parameters"
            hint = "another optimizer (AdamW, SGD); or --strategy ddp"
        return ScriptError(what, where=f"--strategy {self.name}", why=text.splitlines()[0], hint=hint)

    def rest(self) -> None:
        for model in self._models:
            for unit in units_of(model):
                unit.reshard()


class Used:
    """Which parameters had a gradient in the global batch in progress, on this rank.

    fully_shard gives every parameter of a block a gradient, zeros where there is none. An optimizer would let weight decay
    and momentum work on those, and leave them alone in one process.
    """

    def __init__(self) -> None:
        self.parameters: list[nn.Parameter] = []  # as sharded
        self.counting = True
        self._place: dict[int, int] = {}  # id of a sharded parameter -> where it stands in `parameters`
        self._seen: list[bool] = []

    def __contains__(self, parameter: nn.Parameter) -> bool:
        return id(parameter) in self._place

    def add(self, parameter: nn.Parameter) -> None:
        """Counts a parameter, which is sharded by now."""
        self._place[id(parameter)] = len(self.parameters)
        self.parameters.append(parameter)
        self._seen.append(False)

    def watch(self, unit: FSDPModule) -> None:
        """Hooks the whole parameters of a unit when they are first gathered; they stay the same objects from then on."""
        inner = {id(p) for part in units_of(unit) if part is not unit for p in part.parameters()}  # type: ignore[arg-type, attr-defined]
        waiting = {
            self._place[id(parameter)]: (module, name)
            for module in unit.modules()  # type: ignore[attr-defined]
            for name, parameter in module.named_parameters(recurse=False)
            if id(parameter) not in inner
        }

        def gathered(*_: Any) -> None:
            for place, (module, name) in list(waiting.items()):
                parameter = getattr(module, name)
                if parameter.requires_grad:  # one that is frozen may be unfrozen yet
                    parameter.register_post_accumulate_grad_hook(partial(self._mark, place))
                    del waiting[place]

        unit.register_forward_pre_hook(gathered)  # type: ignore[attr-defined]

    def _mark(self, place: int, _: torch.Tensor) -> None:
        self._seen[place] = self._seen[place] or self.counting

    def clear(self) -> None:
        """A global batch begins."""
        self._seen = [False] * len(self.parameters)

    def flags(self) -> list[float]:
        """1 for each parameter that had a gradient, else 0."""
        return [float(seen) for seen in self._seen]


def _refuse_sparse(model: nn.Module, strategy: str) -> None:
    """Raises ScriptError for layers whose gradients are sparse tensors, which cannot be cut."""
    for name, layer in model.named_modules():
        if getattr(layer, "sparse", False) and isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            raise ScriptError(
                f"{name or type(layer).__name__} has sparse gradients, which cannot be sharded",
                where=f"--strategy {strategy}",
                hint="sparse=False; or --strategy ddp",
            )


def units_of(model: nn.Module) -> list[FSDPModule]:
    """The sharded parts of a model, itself included."""
    return [part for part in model.modules() if isinstance(part, FSDPModule)]
