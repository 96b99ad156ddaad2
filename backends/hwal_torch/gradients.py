"""From micro-batches to one update: sums of losses and counts, divided once by the count of the whole global batch.

Gradients are summed over micro-batches and ranks, never averaged, so that the update does not depend on how the global
batch was cut. World 1 without accumulation divides the loss before the backward pass instead, which costs nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from hwal.errors import ScriptError
from hwal_torch.collectives import Collectives
from hwal_torch.shards import scale
from hwal_torch.strategy import Strategy
from hwal_torch.units import Unit


class Gradients:
    """The gradients of one global batch in the making.

    Attributes:
        went_back: whether the current micro-batch has been back-propagated.
        stepped: the optimizers that were stepped in the current global batch.
        waiting: whether a micro-batch has been back-propagated and its global batch not been stepped yet.
        stop: whether any rank asked, at the last reduction, for the run to end.
        loss, count: of the last finished global batch: the mean loss, and what it was divided by (numbers or device scalars).
    """

    def __init__(
        self,
        device: torch.device,
        world: int,
        scaler: torch.amp.GradScaler | None,
        ordered_parts: int | None = None,
        collectives: Collectives | None = None,
    ) -> None:
        """`ordered_parts`: the parts of a global batch whose sums are added in their order, at every world the same."""
        self._device = device
        self._on_host = device.type == "cpu"  # reading a number there waits for nothing
        self._dtype = torch.float32 if device.type in ("mps", "xla") else torch.float64  # those lack, or emulate, float64
        self._world = world
        self._scaler = scaler
        self._parts = ordered_parts
        self._collectives = collectives or Collectives()
        self._guess: float | None = (
            None  # fp16 divides by the largest global count so far, so that sums of many rows do not overflow
        )
        self._checked = False  # an optimizer has stepped, so that the scaler knows whether its gradients overflowed
        self._unit: Unit | None = None
        self._strategy: Strategy | None = None
        self._sums: torch.Tensor | None = None  # a row (sum, count) for each ordered part, or one row
        self.went_back = False
        self._whole = False  # the global batch is one forward: nothing to sum up
        self._inverse: Any = 1.0
        self.waiting = False
        self.stop = False
        self.stepped: list[torch.optim.Optimizer] = []
        self.loss: Any = None
        self.count: Any = None

    def open(self, unit: Unit, strategy: Strategy) -> None:
        """A micro-batch begins."""
        self._unit = unit
        self._strategy = strategy
        self.went_back = False
        if unit.first:
            self.stepped.clear()
            self._sums = None
            self._checked = False
            self._whole = unit.last and self._world == 1 and self._scaler is None and self._parts is None

    def backward(self, loss: Any) -> None:
        unit, strategy = self._unit, self._strategy
        if unit is None or strategy is None:
            raise ScriptError("rt.backward() outside of a training feed", hint="for batch in rt.feed(loader): …")
        if self.went_back:
            raise ScriptError(
                "rt.backward() was called twice for one micro-batch", hint="add the losses up and call rt.backward once"
            )
        self.went_back = self.waiting = True
        if isinstance(loss, tuple | list):
            total, count = loss
        else:
            total, count = None, unit.high - unit.low
        if self._whole:
            mean = loss if total is None else total / self._divisor(count)
            self.loss, self.count = mean.item() if self._on_host else mean.detach(), count
            mean.backward()
            return
        if total is None:
            total = loss * count
        self._add(total.detach(), count, unit)
        if unit.weight != 1.0:
            total = total * unit.weight
        if self._scaler is not None:
            if self._guess is None:
                self._guess = self._first_guess(count, unit)
            total = self._scaler.scale(total / self._guess)
        total.backward()
        strategy.went_back(unit)

    def _divisor(self, count: Any) -> Any:
        """A count, 1 in place of 0; a device's is not read."""
        if self._on_host or not isinstance(count, torch.Tensor):
            return count if count else 1
        return torch.where(count == 0, 1, count)

    def _first_guess(self, count: Any, unit: Unit) -> float:
        """The global count, from what all ranks' first micro-batches count for their rows; where the order of parts counts,
        from the first part alone."""
        weight = unit.weight if self._parts is None or unit.low == 0 else 0.0
        pair = torch.tensor([float(count), float(unit.rows)], dtype=self._dtype, device=self._device) * weight
        if self._world > 1:
            pair, _ = self._collectives.add_up(pair, ())
        counted, rows = pair.tolist()
        return max(counted * unit.total / rows, 1.0)

    def _add(self, total: torch.Tensor, count: Any, unit: Unit) -> None:
        if self._sums is None:
            self._sums = torch.zeros(self._parts or 1, 2, dtype=self._dtype, device=self._device)
        if unit.weight:  # a ghost's loss may be anything, NaN too
            pair = self._sums[unit.part if self._parts and unit.part is not None else 0]
            pair[0] += total
            pair[1] += count

    def reduce(self, stop: bool, strategy: Strategy) -> None:
        """Brings (sum, count) of all ranks together, once a global batch; with them travel any rank's wish to end and the
        strategy's flags."""
        self.waiting = False
        self.stop = stop
        if self._whole:
            return
        sums = self._sums
        assert sums is not None
        flags = strategy.flags()
        if self._world > 1:
            # Each part's row is other than 0 on one rank only, so that nothing is rounded.
            sums, (stopped, *flags) = self._collectives.add_up(sums, [float(stop), *flags])
            self.stop = stopped > 0
        strategy.reduced(flags)
        total, count = functools.reduce(torch.add, sums)
        safe = torch.where(count == 0, 1.0, count)
        self.loss, self.count = total / safe, count
        divided = self._guess if self._scaler is not None and self._guess is not None else 1.0
        self._inverse = (divided / safe).float()
        if self._scaler is not None and self._guess is not None:
            # Not the last count alone: after a short ragged batch it would let the next, full one overflow.
            self._guess = max(self._guess, float(safe))

    def apply(self, optimizer: torch.optim.Optimizer, clip: float | None, strategy: Strategy) -> None:
        """Divides, unscales, clips and updates the parameters of one optimizer, and clears their gradients."""
        if clip is not None and not (isinstance(clip, int | float) and clip > 0):
            raise ScriptError(
                f"rt.step(clip={clip}): the largest norm must be above 0",
                hint="leave clip out to clip nothing; one optimizer a call",
            )
        parameters = [p for group in optimizer.param_groups for p in group["params"]] if clip or not self._whole else []
        gradients = [p.grad for p in parameters if p.grad is not None]
        scaler = self._scaler if gradients else None  # it refuses an optimizer without any gradient
        if scaler is not None:
            strategy.unscale(scaler, optimizer)
        if not self._whole:
            scale(gradients, self._inverse)
        if clip is not None:
            strategy.clip(parameters, clip)
        try:
            if scaler is not None:
                scaler.step(optimizer)
                self._checked = True
            else:
                optimizer.step()
        except RuntimeError as error:
            if (told := strategy.explain(error, optimizer)) is not None:
                raise told from error
            raise
        optimizer.zero_grad(set_to_none=True)

    @property
    def own_part_is_finite(self) -> bool:
        """Whether this rank's part of the last global batch's loss is a number."""
        return self._sums is None or bool(torch.isfinite(self._sums).all())

    def state_dict(self) -> dict[str, Any]:
        """The loss scaler's state, and the count by which fp16 divides beforehand."""
        return {"guess": self._guess, "scaler": self._scaler.state_dict() if self._scaler is not None else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._guess = state["guess"]
        if self._scaler is not None and state["scaler"] is not None:
            self._scaler.load_state_dict(state["scaler"])

    def close(self, optimizers: list[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
        """The global batch is done. Returns those of the optimizers that were not stepped, whose gradients go: they would
        meet the next batch's undivided."""
        if self._scaler is not None and self._checked:
            self._scaler.update()
        left = [optimizer for optimizer in optimizers if optimizer not in self.stepped]
        for optimizer in left:
            optimizer.zero_grad(set_to_none=True)
        return left
