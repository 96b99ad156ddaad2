"""World honesty for scripts that never call hwal.start(): N processes that train apart are stopped at their first step.

torch's global optimizer hook asks, before the first optimizer step, for a process group of the size that was asked for. Whoever
made it (Trainer, accelerate, plain DDP) does not matter. Once it has seen one, the hook removes itself.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from hwal.errors import ScriptError

MODULE = "torch.optim.optimizer"


def install(size: int) -> None:
    """Watches the optimizers of this process for a world of `size`. Does not import torch: waits until the script does."""
    module = sys.modules.get(MODULE)
    if module is not None:
        watch(module, size)
    else:
        sys.meta_path.insert(0, _Finder(size))


def watch(optimizers: Any, size: int) -> None:
    """Hangs the check into the module torch.optim.optimizer."""

    def check(optimizer: object, args: object, kwargs: object) -> None:
        import torch.distributed as dist

        found = dist.get_world_size() if dist.is_available() and dist.is_initialized() else None
        if found != size:
            raise apart(size, "there is no process group" if found is None else f"the process group has {found} member(s)")
        alone = by_accelerate()
        if alone is not None and alone != size:
            raise apart(
                size, f"accelerate counts {alone} process(es)", "ACCELERATE_USE_CPU=true on CPUs; or call hwal.start() first"
            )
        handle.remove()

    handle = optimizers.register_optimizer_step_pre_hook(check)


def leave() -> None:
    """Takes down the process group that such a script has left behind it: where nobody does, torch may abort at exit
    ("terminate called without an active exception", torch 2.13 with gloo), and a run that is done would have failed."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        gc.collect()  # DDP goes first, which a Trainer holds in rings: torch aborts too where it outlives its group
        with suppress(RuntimeError):  # it is broken already
            dist.destroy_process_group()


def by_accelerate() -> int | None:
    """The world as accelerate sees it, where the script uses it: on CPUs it can make a group of all and then ignore it."""
    module = sys.modules.get("accelerate.state")
    state: Any = getattr(getattr(module, "PartialState", None), "_shared_state", None) or {}
    size: int | None = state.get("num_processes")
    return size


def apart(size: int, have: str, hint: str | None = None) -> ScriptError:
    return ScriptError(
        f"{size} processes were started, but they train apart: {have} at the first optimizer step",
        where="optimizer.step()",
        why=f"every process would train a model of its own on the same data, {size} times over",
        hint=hint or "call hwal.start() first (`with hwal.start() as rt:`), or start one process: -n 1",
    )


class _Finder(MetaPathFinder):
    """Finds torch.optim.optimizer once, as the path finder does, and watches it as soon as it has run."""

    def __init__(self, size: int) -> None:
        self.size = size

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.size)
        return spec


class _Loader(Loader):
    def __init__(self, inner: Any, size: int) -> None:
        self.inner = inner
        self.size = size

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self.inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self.inner
        if module.__spec__ is not None:
            module.__spec__.loader = self.inner
        self.inner.exec_module(module)
        watch(module, self.size)
