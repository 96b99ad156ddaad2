"""An optimizer whose state has other shapes than its parameters: a second moment of rows and one of columns."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class Factored(torch.optim.Optimizer):
    """Adafactor's idea, in operations that work on shards too. Parameters have one dimension or two."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "decay": 0.9})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group["lr"], group["decay"])

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, lr: float, decay: float) -> None:
        square, state = gradient.square(), self.state[parameter]
        now = {"all": square} if gradient.dim() < 2 else {"rows": square.mean(1), "columns": square.sum(0) / len(square)}
        for name, value in now.items():
            state[name] = state[name] * decay + value * (1 - decay) if name in state else value
        scale = state["all"] if "all" in state else state["rows"][:, None] * state["columns"]
        parameter.sub_(lr * gradient / (scale.sqrt() + 1e-3))
