"""prepare: models go to the device or are sharded, optimizers follow their parameters, a checkpoint is restored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hwal.errors import ScriptError
from hwal.plan.strategy import mesh_of
from hwal_torch import loading, optim
from hwal_torch.blocks import find_blocks
from hwal_torch.checkpoint import held
from hwal_torch.meta import allocate
from hwal_torch.strategy import Sharding
from hwal_torch.trouble import mixes_samples
from hwal_torch.units import Cut

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime


def prepare(rt: SharedTorchRuntime, objects: Sequence[Any]) -> None:
    """Prepares models, optimizers and schedulers, all in place. Raises ScriptError, CheckpointError and VersionError."""
    _sort(rt, objects)
    decision, warning = rt.decide_strategy()
    if decision != rt.strategy_decision:
        rt.take_strategy(decision)
    names = optim.names_of(rt.models)
    groups = [optim.group_names(optimizer, names) for optimizer in rt.optimizers]
    for model in rt.models:
        _lay_out(rt, model)
    parameters = rt.parameters()
    for optimizer, group in zip(rt.optimizers, groups, strict=True):
        optim.repoint(optimizer, group, parameters)
        if rt.fused_optimizers and optim.use_fused(optimizer):
            rt.say_once(f"{type(optimizer).__name__}: its fused kernel, which is faster here")
    for model in rt.models:
        rt.strategy.install(model)
        rt.buffers.add(model)
        if rt.cut != Cut() and (mixing := mixes_samples(model)):
            rt.say_once(mixing)
    several = rt.world_size > 1 or len(rt.job.devices) > 1
    strategy = f"strategy {decision}" if several else None
    for line in (strategy, warning, rt.strategy.cost()):
        if line is not None:
            rt.say_once(line)
    plan = rt.job.plan
    mesh = mesh_of(decision.value, plan.nodes, math.prod(plan.mesh.values()) // plan.nodes)
    rt.decided = {"strategy": decision, "mesh": mesh}
    rt.write_plan(**rt.decided)
    rt.held = [frozenset(name for name, _, _ in held(model)) for model in rt.models]
    loading.restore(rt)
    rt.empties.check()


def _sort(rt: SharedTorchRuntime, objects: Sequence[Any]) -> None:
    if rt.models:
        raise ScriptError("rt.prepare() was called twice", hint="give it all models, optimizers and schedulers in one call")
    rt.models = [item for item in objects if isinstance(item, nn.Module)]
    rt.optimizers = [item for item in objects if isinstance(item, torch.optim.Optimizer)]
    rt.schedulers = [item for item in objects if not isinstance(item, nn.Module | torch.optim.Optimizer)]
    for item in rt.schedulers:
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise ScriptError(
                f"rt.prepare() cannot take a {type(item).__name__}",
                hint="models, optimizers, and objects with state_dict() and load_state_dict(); loaders go to rt.feed()",
            )


def _lay_out(rt: SharedTorchRuntime, model: nn.Module) -> None:
    """Puts a model on the device, or this rank's part of it; has its blocks compiled and recomputed where asked."""
    settings, strategy = rt.job.settings, rt.strategy
    if not strategy.sharded:
        allocate(model, rt.home)
        rt.place(model)
    if not (strategy.sharded or settings.compile or settings.grad_checkpoint):
        return
    blocks = find_blocks(model, rt.job.plan.wrap)
    if isinstance(strategy, Sharding):
        strategy.shard(model, blocks)
        rt.say_once(f"sharded: {blocks.why}")
    if settings.compile:
        rt.say_once(rt.compile(model, blocks))
    if settings.grad_checkpoint:
        rt.say_once(rt.recompute(model, blocks))
