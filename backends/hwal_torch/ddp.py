"""DDP: a whole model on each rank. Installed behind the model's own forward, so that the object the script holds stays the
one it built (`model.generate`, `model.config` and its state's names stay)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hwal.errors import ScriptError
from hwal_torch.forward import Forward
from hwal_torch.strategy import Strategy, not_brought_together, refuse_shared
from hwal_torch.units import Unit


class DataParallel(Strategy):
    """torch's DistributedDataParallel: a whole model on each rank, gradients all-reduced while the backward runs."""

    name = "ddp"

    def __init__(self) -> None:
        self._models: list[nn.Module] = []
        self._wrapped: list[nn.parallel.DistributedDataParallel] = []
        self._forwards: list[_Through] = []
        self._way: dict[int, _Through] = {}  # id of a parameter -> the forward that brings its gradient together

    def install(self, model: nn.Module) -> None:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return
        refuse_shared(model, self._models)
        # find_unused_parameters: a parameter without gradient in one batch must not stop the run, whatever the world.
        ddp = nn.parallel.DistributedDataParallel(_Inner(model), find_unused_parameters=True, gradient_as_bucket_view=True)
        ddp.broadcast_buffers = False  # they are shared once a step (hwal_torch.buffers), not before every forward
        ddp.register_comm_hook(None, _sum)
        through = _Through(model, ddp, self)
        self._models.append(model)
        self._wrapped.append(ddp)
        self._forwards.append(through)
        self._way.update((id(parameter), through) for parameter in model.parameters() if parameter.requires_grad)

    def sync(self, unit: Unit) -> None:
        self.training = True
        for ddp in self._wrapped:
            ddp.require_backward_grad_sync = unit.last
        for through in self._forwards:
            through.entered = False

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                way = self._way.get(id(parameter))
                if parameter.grad is not None and (way is None or not way.entered):
                    raise not_brought_together(
                        "its parameter was not prepared, or was frozen at that time"
                        if way is None
                        else f"{type(way.module).__name__} was not called as model(x), but by another method or in parts"
                    )

    def leave(self) -> None:
        for through in self._forwards:
            through.ddp = None
        self._wrapped.clear()

    def explain(self, error: BaseException | None, optimizer: torch.optim.Optimizer | None = None) -> ScriptError | None:
        if not isinstance(error, RuntimeError) or "marked as ready" not in str(error):
            return None
        return ScriptError(
            "a parameter was used in two forwards of one backward",
            where="--strategy ddp",
            why="DDP brings a gradient together once, as soon as it is there",
            hint="one model(x) that computes both, and one rt.backward for each micro-batch",
        )


class _Inner(nn.Module):
    """What DDP wraps: the model under the forward it had before."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.original = model.forward
        # DDP warns when it looks for unused parameters and finds none; with this one there always is one.
        self.unused = nn.Parameter(torch.zeros(1, device=next(model.parameters()).device))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs)


class _Through(Forward):
    """By way of DDP when there will be a backward, direct otherwise, because evaluation may run a different number of
    forwards on each rank."""

    def __init__(self, model: nn.Module, ddp: nn.Module, strategy: Strategy) -> None:
        super().__init__(model)
        self.ddp: nn.Module | None = ddp
        self.strategy = strategy
        self.entered = False  # since the current micro-batch began

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.ddp is not None and self.strategy.training and torch.is_grad_enabled():
            self.entered = True
            return self.ddp(*args, **kwargs)
        return self.original(*args, **kwargs)


def _sum(_, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with classes, and ours are strings
    """Communication hook: the sum over ranks, where DDP's own takes the mean."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])
