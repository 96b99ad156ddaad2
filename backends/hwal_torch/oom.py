"""Out of memory, in words: what was asked for, what was in use by what, whose limit it was, and what helps."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from hwal import shortage
from hwal.display import size
from hwal.env import has_flags, spelled
from hwal.errors import ShortageError
from hwal.host import Host
from hwal.micro_batch import AUTO
from hwal.plan.strategy import OFFLOAD, is_sharded
from hwal_torch.blocks import find_blocks
from hwal_torch.estimate import estimate

if TYPE_CHECKING:
    from hwal_torch.loop import Left
    from hwal_torch.runtime import SharedTorchRuntime

NO_THREAD = "can't start new thread"  # where there is no memory for its stack; rarely where there are too many
SAID = ("can't allocate memory", "cannot allocate memory", "out of memory", "std::bad_alloc", "resource_exhausted", NO_THREAD)
ASKED = re.compile(r"(?:tried to allocate|unable to allocate) ([\d.]+) ?(bytes|[KMGT]iB)", re.IGNORECASE)
NO_SHARED = re.compile(
    r"unable to \w+ (?:shared memory|to file|file)[^\n]*No space left|(?:insufficient|workers are out of) shared memory"
)
SHARED = "/dev/shm"
SHOWN = 4  # tensors of a batch
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
    return any(words in text.lower() for words in SAID) or any(one.search(text) for one in (LOADER_KILLED, NO_SHARED))


def explain(rt: SharedTorchRuntime, error: BaseException | None) -> ShortageError | None:
    """The words for an error that is a shortage of memory, None for any other. In a search, the next size is left for the
    process that comes after this one."""
    if not is_shortage(error):
        return None
    text = str(error)
    left = rt.loop.at_work
    if shared := NO_SHARED.search(text):
        return ShortageError(
            f"out of shared memory, through which a loader's workers hand batches over: {shared.group()}",
            where=_where(rt, left),
            why=_shared(),
            hint="a larger /dev/shm (docker run --shm-size=8g, or --ipc=host), fewer workers (num_workers), smaller batches",
        )
    unit = left.unit if left is not None else None
    worker = LOADER_KILLED.search(text) is not None  # which smaller forwards would not help
    following = rt.search.failed(unit.rows) if rt.search is not None and unit is not None and not worker else None
    what = "out of memory"
    if worker:
        what += ": a worker of the loader was killed by the kernel"
    elif NO_THREAD in text:
        what += ": a thread could not be started"
    elif found := ASKED.search(text):
        what += f": {_bytes(*found.groups())} more could not be had"
    told = ShortageError(what, where=_where(rt, left))
    with suppress(Exception):  # there is little memory left to find words in
        told.why = _in_use(rt, error)
    with suppress(Exception):
        if not following:
            told.hint = _advice(rt, left, text)
        else:
            told.hint = f"{spelled('micro_batch', AUTO)}: the next start of this run tries {following} rows a forward"
    return told


def _bytes(number: str, unit: str) -> str:
    return size(int(float(number))) if unit == "bytes" else f"{number} {unit}"


def _where(rt: SharedTorchRuntime, left: Left | None) -> str:
    """`rank 1, cuda:1, a micro-batch of 64 rows (64×3×224×224 float32, 64 int64), in an evaluation after step 12`."""
    parts = [f"rank {rt.rank}"] * (rt.world_size > 1) + [str(rt.device)]
    if left is None:
        return ", ".join([*parts, *([f"after step {rt.steps_done}"] if rt.steps_done else [])])
    shapes = _shapes(left.batch)
    step = f"after step {rt.steps_done}" if rt.steps_done else "before the first step"
    when = f"in step {rt.steps_done + 1}" if left.trains else f"in an evaluation {step}"
    return ", ".join([*parts, f"a micro-batch of {left.unit.rows} rows{f' ({shapes})' if shapes else ''}", when])


def _shapes(batch: Any) -> str:
    """What the forward was given: the shapes and dtypes of a batch's tensors."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    shown = ["×".join(map(str, t.shape)) + f" {str(t.dtype).removeprefix('torch.')}" for t in tensors[:SHOWN]]
    return ", ".join(shown + ["…"] * (len(tensors) > SHOWN))


def _shared() -> str | None:
    """How full the file system is that holds shared memory."""
    try:
        total, used, _ = shutil.disk_usage(SHARED)
    except OSError:
        return None
    return f"{size(used)} in use of the {size(total)} of {SHARED}"


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
    parameters = list(rt.parameters().values())
    if parameters:
        yield "parameters", sum(map(rt.bytes_here, parameters))
        yield "gradients", sum(rt.bytes_here(p.grad) for p in parameters if p.grad is not None)
    for optimizer in rt.optimizers:
        values = [value for slots in optimizer.state.values() for value in slots.values()]
        yield type(optimizer).__name__, sum(rt.bytes_here(value) for value in values if isinstance(value, torch.Tensor))


def _advice(rt: SharedTorchRuntime, left: Left | None, text: str) -> str:
    """Flags that help, the cheapest first."""
    unit = left.unit if left is not None else None
    trains = left is None or left.trains
    settings, strategy = rt.job.settings, rt.strategy_decision.value
    on_host, parts = rt.device.type == "cpu", []
    if LOADER_KILLED.search(text):
        return "fewer workers of the loader (num_workers), or a smaller prefetch_factor"
    if unit is not None and settings.virtual_ranks:
        parts.append(
            f"{spelled('virtual_ranks', 2 * settings.virtual_ranks)} ({unit.rows} rows a forward now; dropout draws anew)"
        )
    elif unit is not None and unit.rows > 1:
        auto = ", or auto, which finds the size" if rt.search is None else ""
        parts.append(f"{spelled('micro_batch', unit.rows // 2)} ({unit.rows} rows a forward now){auto}")
    if not trains:
        parts.append("torch.no_grad() around the evaluation, if there is none: it keeps no activations")
    if unit is not None and trains and not settings.grad_checkpoint:
        parts.append(f"{spelled('grad_checkpoint')} (activations are computed twice)")
    spmd, devices = rt.job.caps.spmd, len(rt.job.devices) * rt.world_size
    if not is_sharded(strategy) and rt.job.caps.sharding and not (devices == 1 and (on_host or spmd)):
        world = max(devices, 2)
        need = estimate(rt.models, rt.optimizers, [find_blocks(m, rt.job.plan.wrap) for m in rt.models]) if rt.models else None
        if need is not None and (share := need.sharded(world)) < need.total:
            shares = f"{size(share)} of state on each, not {size(need.total)}"
            two = "" if devices > 1 else "-n 2 " if has_flags() else "two ranks and "
            parts.append(f"{two}{spelled('strategy', 'fsdp:full')} ({shares})")
    if is_sharded(strategy) and not strategy.endswith(OFFLOAD) and not on_host and not spmd:
        parts.append(f"{spelled('strategy', strategy + OFFLOAD)} (shards wait in the host's memory)")
    if unit is not None and rt.job.plan.precision.value in ("fp32", "tf32"):
        parts.append(f"{spelled('precision', 'bf16')} (activations of half the size)")
    return "; ".join(parts) or "a device with more memory, or a smaller model"
