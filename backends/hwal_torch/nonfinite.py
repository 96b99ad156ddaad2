"""Losses that are no numbers: they end the run before the update, or leave it out (--on-nan)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hwal.env import spelled
from hwal.errors import ScriptError
from hwal_torch.shards import whole

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime

SHOWN = 8  # steps, or ranks, that are named
REMEDIES = "a lower learning rate, clip=1.0"
MOST = 100  # updates in a row that --on-nan skip leaves out


class NotFinite:
    """Attributes:
    steps: those whose update was left out.
    """

    def __init__(self, rt: SharedTorchRuntime) -> None:
        self._rt = rt
        self.steps: list[int] = []
        self._in_a_row = 0

    def meet(self, loss: float, optimizer: torch.optim.Optimizer) -> None:
        """A global batch's loss is NaN or infinite. Every rank calls it. Raises ScriptError under --on-nan stop, and under skip
        where no update would follow any more."""
        rt = self._rt
        if self.steps[-1:] == [rt.steps_done]:  # a second optimizer of the same step
            optimizer.zero_grad(set_to_none=True)
            return
        told = f"the loss of step {rt.steps_done} is {loss}{self._on_ranks()}"
        if rt.job.settings.on_nan == "skip":
            self._leave_out(told)
            optimizer.zero_grad(set_to_none=True)
            return
        raise ScriptError(
            told,
            where=f"epoch {rt.epoch}, learning rate {float(optimizer.param_groups[0]['lr']):g}",
            why=f"{_first_bad(rt)}; no update was made",
            hint=f"{REMEDIES} or {spelled('precision', 'fp32')}; {spelled('on_nan', 'skip')} leaves such batches out",
        )

    def _leave_out(self, told: str) -> None:
        rt = self._rt
        self._in_a_row = self._in_a_row + 1 if self.steps[-1:] == [rt.steps_done - 1] else 1
        self.steps.append(rt.steps_done)
        count = len(self.steps)
        if (name := _first(rt, lambda p: p)) is not None:
            raise ScriptError(
                f"{told}, and so will be all that follow",
                where=f"epoch {rt.epoch}, after {count} update(s) left out",
                why=f"{name} is not finite: an update before this one made it so, from gradients that were not",
                hint=f"resume from an earlier checkpoint, with {REMEDIES} or {spelled('precision', 'fp32')}",
            )
        if self._in_a_row >= MOST:
            raise ScriptError(
                f"{told}, as were those of the {MOST - 1} steps before",
                where=f"epoch {rt.epoch}, {spelled('on_nan', 'skip')}",
                why="nothing was trained in all of them; the parameters are finite, so it is the data or the loss",
                hint=f"look at what the batches from step {self.steps[-MOST]} on hold",
            )
        if count <= SHOWN:
            rt.say(f"{told}: no update ({spelled('on_nan', 'skip')}); {_first_bad(rt)}")
        elif count & (count - 1) == 0:
            rt.say(f"{told}: no update, as in {count - 1} steps before ({spelled('on_nan', 'skip')})")
        for model in rt.models:
            for name, buffer in model.named_buffers():
                if not bool(torch.isfinite(whole(buffer)).all()):
                    rt.say_once(
                        f"{name}, which the forward writes, is not finite since step {rt.steps_done}: evaluation reads it"
                    )
                    return

    def found_late(self, step: int, loss: float) -> None:
        """The loss of an earlier step was NaN or infinite, on a device whose numbers are read late. Raises ScriptError."""
        rt = self._rt
        raise ScriptError(
            f"the loss of step {step} is {loss}",
            where=f"read after step {rt.steps_done}: updates were made meanwhile, and are not saved",
            why=_first_bad(rt),
            hint=f"{REMEDIES} or {spelled('precision', 'fp32')}; {spelled('on_nan', 'skip')} leaves such batches out, and "
            "waits for each loss to know",
        )

    def _on_ranks(self) -> str:
        """Whose part of the global batch it was."""
        rt = self._rt
        if rt.dp_size == 1:
            return ""
        bad = torch.zeros(rt.world_size, device=rt.collective_device)
        bad[rt.rank] = float(not rt.gradients.own_part_is_finite)
        dist.all_reduce(bad)
        ranks = bad.nonzero().flatten().tolist()
        if not ranks or len(ranks) == rt.world_size:
            return " on all ranks" if ranks else ""
        return f" on rank{'s' * (len(ranks) > 1)} {_some(ranks)}"

    def summary(self) -> str | None:
        """What was left out, once; None when nothing was."""
        steps, self.steps = self.steps, []
        if not steps:
            return None
        were = "s were" if len(steps) > 1 else " was"
        return f"{len(steps)} update{were} left out ({spelled('on_nan', 'skip')}), in step {_some(steps)}"


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:SHOWN])) + (f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else "")


def _first_bad(rt: SharedTorchRuntime) -> str:
    for what, pick in (("", lambda p: p), ("the gradient of ", lambda p: p.grad)):
        if (name := _first(rt, pick)) is not None:
            return f"{what}{name} is the first that is not finite"
    return "all parameters and gradients are finite"


def _first(rt: SharedTorchRuntime, pick: Callable[[Any], torch.Tensor | None]) -> str | None:
    """The first of which what is picked is not finite. Every rank calls it, since each holds a part of sharded parameters."""
    for name, parameter in rt.parameters().items():
        value = pick(parameter)
        bad = value is not None and not bool(torch.isfinite(whole(value)).all())
        if rt.ending.any(bad) if rt.strategy.sharded else bad:
            return name
    return None
