"""Out of memory, in words: what was asked for, what was in use by what, whose limit it was, and what helps."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from hwal import shortage
from hwal.display import size
from hwal.errors import ShortageError
from hwal.host import Host
from hwal.plan.strategy import OFFLOAD, is_sharded
from hwal_torch.blocks import find_blocks
from hwal_torch.estimate import estimate
from hwal_torch.shards import local
from hwal_torch.units import Unit

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime

SAID = ("can't allocate memory", "cannot allocate memory", "out of memory", "std::bad_alloc", "resource_exhausted")
ASKED = re.compile(r"(?:tried to allocate|unable to allocate) ([\d.]+) ?(bytes|[KMGT]iB)", re.IGNORECASE)
LOADER_KILLED = re.compile(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Killed")


def is_shortage(error: BaseException | None) -> bool:
    """Whether an error says that there was no memory: of the device, of the host, or of a loader's worker."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return any(words in text.lower() for words in SAID) or bool(LOADER_KILLED.search(text))


def explain(rt: SharedTorchRuntime, error: BaseException | None) -> ShortageError | None:
    """The words for an error that is a shortage of memory, None for any other. In a search, the next size is left for the
    process that comes after this one."""
    if not is_shortage(error):
        return None
    text = str(error)
    unit = rt.at_work
    following = rt.search.failed(unit.rows) if rt.search is not None and unit is not None else None
    what = "out of memory"
    if LOADER_KILLED.search(text):
        what += ": a worker of the loader was killed by the kernel"
    elif found := ASKED.search(text):
        what += f": {_bytes(*found.groups())} more could not be had"
    told = ShortageError(what, where=_place(rt, unit))
    with suppress(Exception):  # there is little memory left to find words in
        told.why = _in_use(rt, error)
        if not following:
            told.hint = _advice(rt, unit, text)
        else:
            told.hint = f"--micro-batch auto: the next start of this run tries {following} rows a forward"
    return told


def _bytes(number: str, unit: str) -> str:
    return size(int(float(number))) if unit == "bytes" else f"{number} {unit}"


def _place(rt: SharedTorchRuntime, unit: Unit | None) -> str:
    rank = f"rank {rt.rank}, " if rt.world_size > 1 else ""
    if unit is None:
        return f"{rank}{rt.device}"
    when = f"after {rt.steps_done} steps" if rt.steps_done else "in the first step"
    return f"{rank}{rt.device}, a micro-batch of {unit.rows} rows, {when}"


def _in_use(rt: SharedTorchRuntime, error: BaseException | None) -> str:
    """`3.9 GiB in use of 4.0 GiB (RLIMIT_AS): parameters 1.0 GiB, gradients 1.0 GiB, AdamW 2.0 GiB, all else 0.1 GiB`."""
    if rt.device.type == "cpu" or isinstance(error, MemoryError | OSError):
        limit: shortage.Limit | None = next(iter(shortage.limits(Host())), None)
    else:
        memory = rt.memory()
        limit = None if memory.total is None else shortage.Limit(memory.total, memory.used, f"the device's, by {memory.source}")
    rows = list(_held(rt))
    parts = [f"{name} {size(number)}" for name, number in rows]
    if limit is None:
        return ", ".join(parts) or "how much memory there is, nobody says"
    if rows and limit.used is not None:
        rest = limit.used - sum(number for _, number in rows)
        parts += [f"all else (activations, data, the framework) {size(rest)}"] if rest > 0 else []
    return str(limit) + (f": {', '.join(parts)}" if parts else "")


def _held(rt: SharedTorchRuntime) -> Iterator[tuple[str, int]]:
    """What this rank's tensors take, by kind."""
    parameters = [local(p) for p in rt.parameters().values()]
    gradients = [local(p.grad) for p in rt.parameters().values() if p.grad is not None]
    if parameters:
        yield "parameters", sum(p.nbytes for p in parameters)
        yield "gradients", sum(g.nbytes for g in gradients)
    for optimizer in rt.optimizers:
        values = [value for slots in optimizer.state.values() for value in slots.values()]
        yield type(optimizer).__name__, sum(local(value).nbytes for value in values if isinstance(value, torch.Tensor))


def _advice(rt: SharedTorchRuntime, unit: Unit | None, text: str) -> str:
    """Flags that help, the cheapest first."""
    settings, strategy = rt.job.settings, rt.strategy_decision.value
    on_host, parts = rt.device.type == "cpu", []
    if LOADER_KILLED.search(text):
        return "fewer workers of the loader (num_workers), or a smaller prefetch_factor"
    if unit is not None and settings.virtual_ranks:
        parts.append(f"--virtual-ranks {2 * settings.virtual_ranks} ({unit.rows} rows a forward now; dropout draws anew)")
    elif unit is not None and unit.rows > 1:
        parts.append(f"--micro-batch {unit.rows // 2} ({unit.rows} rows a forward now), or auto, which finds the size")
    if unit is not None and not settings.grad_checkpoint:
        parts.append("--grad-checkpoint (activations are computed twice)")
    if not is_sharded(strategy) and rt.job.caps.sharding and not (on_host and rt.world_size == 1):
        world = max(rt.world_size, 2)
        need = estimate(rt.models, rt.optimizers, [find_blocks(m, rt.job.plan.wrap) for m in rt.models]) if rt.models else None
        if need is not None and (share := need.sharded(world)) < need.total:
            shares = f"{size(share)} of state a rank, not {size(need.total)}"
            parts.append(f"{'' if rt.world_size > 1 else '-n 2 '}--strategy fsdp:full ({shares})")
    if is_sharded(strategy) and not strategy.endswith(OFFLOAD) and not on_host:
        parts.append(f"--strategy {strategy}{OFFLOAD} (shards wait in the host's memory)")
    if unit is not None and rt.job.plan.precision.value in ("fp32", "tf32"):
        parts.append("--precision bf16 (activations of half the size)")
    return "; ".join(parts) or "a device with more memory, or a smaller model"
