"""Keys and values that transformers models keep for generation, and that nobody reads while they train: left out.

Recomputing a layer would add to such a cache twice, and compiled code would differ from layer to layer by its place in it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from hwal_torch.blocks import not_nested
from hwal_torch.forward import Forward

ARGUMENT = "use_cache"


def train_without_cache(model: nn.Module) -> None:
    """Makes `use_cache` False by default in training forwards of the transformers models in `model`; generation keeps it."""
    for _, part in not_nested((name, part) for name, part in model.named_modules() if _caches(part)):
        if not isinstance(part.forward, _WithoutCache):
            _WithoutCache(part)


def _caches(part: nn.Module) -> bool:
    return hasattr(part, "config") and ARGUMENT in inspect.signature(part.forward).parameters


class _WithoutCache(Forward):
    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.position = list(inspect.signature(self.original).parameters).index(ARGUMENT)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.module.training and torch.is_grad_enabled() and len(args) <= self.position:
            kwargs.setdefault(ARGUMENT, False)
        return self.original(*args, **kwargs)
