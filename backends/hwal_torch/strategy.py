"""Strategies: how a model's gradients come together from all ranks. Installed behind the model's own forward, so that
the object the script holds stays the one it built (`model.generate`, `model.config` and its state's names stay)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import update_wrapper
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hwal.errors import ScriptError
from hwal.values import Decision


class Strategy(ABC):
    """One way to train a model on `world` ranks.

    Attributes:
        equal: whether all ranks must run equally many forwards (see units.Cut).
        training: whether a backward will follow the next forward; false while an evaluation feed is read.
    """

    name: str
    equal = False
    training = True

    @abstractmethod
    def install(self, model: nn.Module) -> None:
        """Makes the model's gradients those of all ranks, summed; called once, after the model is on its device."""

    @abstractmethod
    def sync(self, last: bool) -> None:
        """Told before each forward whether its backward closes the global batch and must bring the gradients together."""

    @abstractmethod
    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises ScriptError for a gradient that is this rank's alone: every rank would train a model of its own."""


class Single(Strategy):
    """One process: nothing to bring together."""

    name = "single"

    def install(self, model: nn.Module) -> None:
        pass

    def sync(self, last: bool) -> None:
        pass

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        pass


class DataParallel(Strategy):
    """torch's DistributedDataParallel: a whole model on each rank, gradients all-reduced while the backward runs."""

    name = "ddp"

    def __init__(self) -> None:
        self._wrapped: list[nn.parallel.DistributedDataParallel] = []
        self._forwards: list[_Through] = []
        self._way: dict[int, _Through] = {}  # id of a parameter -> the forward that brings its gradient together

    def install(self, model: nn.Module) -> None:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return
        mine = {id(parameter) for parameter in model.parameters()}
        if any(id(parameter) in mine for ddp in self._wrapped for parameter in ddp.parameters()):
            raise ScriptError(
                f"two prepared models share a parameter, one of them a {type(model).__name__}",
                where="rt.prepare",
                why="at several processes each model brings its own gradients together, and these would be summed twice",
                hint="put both into one nn.Module, and prepare that",
            )
        # find_unused_parameters: a parameter without gradient in one batch must not stop the run, whatever the world.
        ddp = nn.parallel.DistributedDataParallel(_Inner(model), find_unused_parameters=True, gradient_as_bucket_view=True)
        ddp.register_comm_hook(None, _sum)
        through = _Through(model, ddp, self)
        model.forward = through  # type: ignore[method-assign]
        self._wrapped.append(ddp)
        self._forwards.append(through)
        self._way.update((id(parameter), through) for parameter in model.parameters() if parameter.requires_grad)

    def sync(self, last: bool) -> None:
        self.training = True
        for ddp in self._wrapped:
            ddp.require_backward_grad_sync = last
        for through in self._forwards:
            through.entered = False

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                way = self._way.get(id(parameter))
                if parameter.grad is not None and (way is None or not way.entered):
                    raise ScriptError(
                        "a gradient of this step was not brought together over the ranks",
                        why="its parameter was not prepared, or was frozen at that time"
                        if way is None
                        else f"{type(way.model).__name__} was not called as model(x), but by another method or in parts",
                        hint="rt.prepare(model, optimizer) with all trained parameters unfrozen, and model(x) in the loop",
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


class _Through:
    """The model's forward from now on: by way of DDP when there will be a backward, direct otherwise, because evaluation
    may run a different number of forwards on each rank. A deep copy of the model (an average of weights, say) gets its own."""

    def __init__(self, model: nn.Module, ddp: nn.Module, strategy: Strategy) -> None:
        update_wrapper(self, model.forward)  # generate() and others read the signature
        self.model = model
        self.ddp = ddp
        self.strategy = strategy
        self.entered = False  # since the current micro-batch began

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.strategy.training and torch.is_grad_enabled():
            self.entered = True
            return self.ddp(*args, **kwargs)
        return self.ddp.module.original(*args, **kwargs)  # type: ignore[union-attr, operator]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo[id(self.model)]
        return MethodType(type(copied).forward, copied)

    def __reduce__(self) -> Any:  # a pickled model goes back to the forward of its class
        return MethodType, (type(self.model).forward, self.model)


def _sum(_, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with classes, and ours are strings
    """Communication hook: the sum over ranks, where DDP's own takes the mean."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def choose(asked: Decision, world: int) -> tuple[Strategy, Decision]:
    """The strategy for `asked`, resolved where it is "auto"; and the decision with its reason."""
    name = asked.value
    if name == "auto":
        decision = Decision("ddp", f"{world} ranks, a whole model on each") if world > 1 else Decision("single", "one process")
    else:
        decision = asked
    strategies: dict[str, type[Strategy]] = {kind.name: kind for kind in (Single, DataParallel)}
    return strategies[decision.value](), decision
