"""Strategies: how parameters are laid over the ranks, and how gradients come together from all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import nn

from hwal.errors import ScriptError
from hwal_torch.blocks import Blocks
from hwal_torch.units import Unit


class Strategy(ABC):
    """One way to train models on the ranks of a world. In the order of the calls: shard, where it is sharded, and install;
    then sync for every micro-batch; at the end of a global batch flags, reduced, check, unscale and clip.

    Attributes:
        equal: whether all ranks must run equally many forwards (see units.Cut).
        sharded: whether a rank holds a part of each parameter only (see Sharding).
        training: whether a backward will follow the next forward; false while an evaluation feed is read.
    """

    name: str
    equal = False
    sharded = False
    training = True

    @abstractmethod
    def install(self, model: nn.Module) -> None:
        """Makes the model's gradients those of all ranks, summed; called once, after the model is on its device."""

    def cost(self) -> str | None:
        """What the installed models cost beyond what they must, in words."""
        return None

    @abstractmethod
    def sync(self, unit: Unit) -> None:
        """Told before each forward which it is: the last one's backward must leave the gradients brought together."""

    def went_back(self, unit: Unit) -> None:
        """Told after each backward which forward it belongs to."""
        return

    def flags(self) -> list[float]:
        """Numbers to be added up over the ranks, together with the losses."""
        return []

    def reduced(self, flags: list[float]) -> None:
        """Told the sums of all ranks' flags, once a global batch, before its gradients are used."""
        return

    @abstractmethod
    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises ScriptError for a gradient that is this rank's alone: every rank would train a model of its own."""

    def unscale(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Takes fp16's factor out of the gradients; every rank learns of an overflow on any of them."""
        scaler.unscale_(optimizer)

    def clip(self, parameters: list[nn.Parameter], largest: float) -> None:
        """Scales gradients down so that their norm, over all parameters and ranks, is `largest` at the most."""
        nn.utils.clip_grad_norm_(parameters, largest)

    def explain(self, error: BaseException | None, optimizer: torch.optim.Optimizer | None = None) -> ScriptError | None:
        """What an error of the script's, or of an optimizer's step, means where the strategy is behind it."""
        return None

    def rest(self) -> None:
        """Frees what a forward without a backward left behind; before parameters are read outside of one."""
        return

    def leave(self) -> None:
        """Told at the end of the run: lets go of the process group. The models go on as they are, on this rank alone."""
        return


class Sharding(Strategy):
    """A strategy under which a rank holds a part of each parameter only."""

    sharded = True

    @abstractmethod
    def shard(self, model: nn.Module, blocks: Blocks) -> None:
        """Cuts a model over the ranks, its blocks one by one, and puts each rank's part on the device."""


class Single(Strategy):
    """One process: nothing to bring together."""

    name = "single"

    def install(self, model: nn.Module) -> None:
        pass

    def sync(self, unit: Unit) -> None:
        pass

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        pass


def refuse_shared(model: nn.Module, others: Iterable[nn.Module]) -> None:
    """Raises ScriptError when a model shares a parameter with one that was prepared before it."""
    mine = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) in mine for other in others for parameter in other.parameters()):
        raise ScriptError(
            f"two prepared models share a parameter, one of them a {type(model).__name__}",
            where="rt.prepare",
            why="at several processes each model brings its own gradients together, and these would be summed twice",
            hint="put both into one nn.Module, and prepare that",
        )


def not_brought_together(why: str) -> ScriptError:
    """The error for a gradient that stayed one rank's own."""
    return ScriptError(
        "a gradient of this step was not brought together over the ranks",
        why=why,
        hint="rt.prepare(model, optimizer) with all trained parameters unfrozen, and model(x) in the loop",
    )
