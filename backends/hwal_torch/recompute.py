"""--grad-checkpoint: a block keeps its inputs only, and runs a second time in the backward pass, with the same random numbers.

transformers models do this themselves, layer by layer; in every other model a block's forward is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hwal_torch.blocks import Blocks, class_name, counted, not_nested
from hwal_torch.forward import Forward
from hwal_torch.no_cache import train_without_cache

Checkpoint = Callable[..., Any]  # (forward, *args, **kwargs) -> what forward returns


def recompute_blocks(model: nn.Module, blocks: Blocks, how: Checkpoint | None = None) -> str:
    """Has the model's blocks recomputed in the backward pass; returns what to say of it.

    `how` in place of torch's own way, where a device needs another; then transformers models too are recomputed by it.

    Called after fully_shard, which gives the blocks other classes, and after compile_blocks: what is recomputed is compiled.
    """
    train_without_cache(model)
    theirs = [part for part in _checkpointing(model) if _enable(part)] if how is None else []
    within = {id(part) for whole in theirs for part in whole.modules()}
    own = [block for block in blocks.outermost if id(block) not in within]
    for block in own:
        _Recomputed(block, how or _checkpoint)
    told = [f"the layers of {class_name(part)}, as transformers does it" for part in theirs]
    told += [counted(own)] if own else []
    if told:
        return f"recomputed in the backward pass: {'; '.join(told)}"
    return f"--grad-checkpoint changes nothing: {blocks.why}, and all of a model at once needs what it would save"


def _checkpoint(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)


class _Recomputed(Forward):
    def __init__(self, module: nn.Module, how: Checkpoint) -> None:
        super().__init__(module)
        self.how = how

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.module.training and torch.is_grad_enabled():
            return self.how(self.original, *args, **kwargs)
        return self.original(*args, **kwargs)


def _checkpointing(model: nn.Module) -> list[nn.Module]:
    """The outermost transformers models in `model` that say they can do it."""
    able = ((name, part) for name, part in model.named_modules() if getattr(part, "supports_gradient_checkpointing", False))
    return [part for _, part in not_nested(able)]


def _enable(model: Any) -> bool:
    """Switches a transformers model's own gradient checkpointing on; False where none of its layers has it after all."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    hooked = hasattr(model, "_require_grads_hook")
    try:
        enable({"use_reentrant": False})
    except ValueError:
        return False
    if not hooked and hasattr(model, "_require_grads_hook"):
        model.disable_input_require_grads()  # only the reentrant kind needs these hooks, and pickle cannot write them
    return True
