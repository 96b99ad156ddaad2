"""How a torch checkpoint comes back: into any strategy, at any number of ranks, tensor by tensor, so that no rank ever holds
a second copy. Rank 0 chooses and verifies it; each rank then reads what it needs, of sharded tensors its own rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from hwal.checkpoint import Manifest
from hwal.errors import CheckpointError
from hwal.resuming import Found, find
from hwal_torch import tree
from hwal_torch.checkpoint import STATE, held, state_of, stem, weights
from hwal_torch.optim import group_names, names_of
from hwal_torch.shards import part_of, rows_of, sharded
from hwal_torch.tensorfile import Reader

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime

SAME_MODEL = "resume with the model that was saved, or start anew without --resume"


@dataclass(frozen=True)
class Stored:
    """A tensor that has not been read yet."""

    key: str


def choose(rt: SharedTorchRuntime) -> Found | None:
    """The newest good checkpoint of the folder that --resume names, if it was given; of a run that was started again, its
    own, if it has one. Raises CheckpointError.

    Every rank calls it; rank 0 looks and verifies, and all have its answer.
    """
    if rt.job.settings.resume is None and not rt.job.again:
        return None
    return rt.channel.ask(lambda: _look(rt))


def _look(rt: SharedTorchRuntime) -> Found | None:
    if rt.job.again:
        if (own := rt.checkpoints.newest(rt.say)) is not None:
            return Found(*own)
        rt.reporter.resumed(0)
    source = rt.job.settings.resume
    if source is None:
        return None
    found = _find(Path(source), rt)
    if found is None:
        rt.reporter.resumed(0)
    return found


def _find(source: Path, rt: SharedTorchRuntime) -> Found | None:
    try:
        return find(source, rt.checkpoints, rt.run_dir, rt.framework, rt.say, rt.job.settings.out)
    except CheckpointError:
        if not any(source.glob("*rank-0-of-*.pth")):
            raise
    raise CheckpointError(
        "these are ranks' parts of a model under FSDP v1, which tell of no position to go on from",
        where=str(source),
        hint=f"python -m hwal_tpu.consolidate {source} makes model.safetensors of them; have the script load that",
    )


def restore(rt: SharedTorchRuntime) -> None:
    """Loads the chosen checkpoint into all that is prepared. Raises CheckpointError."""
    found = rt.found
    if found is None:
        return
    try:
        for number, model in enumerate(rt.models):
            _load_weights(model, found.folder, stem(number))
        _load_state(rt, found.folder)
    except OSError as error:
        raise CheckpointError(
            f"it cannot be read on rank {rt.rank}: {error.strerror or error}",
            where=str(error.filename or found.folder),
            hint="--resume on a file system that all machines share",
        ) from None
    rt.resume_at(found.manifest.position, found.manifest.metrics)
    rt.global_batch, rt.batches = (found.manifest.about.get(name) for name in ("global_batch", "batches"))
    rt.say(f"resumed {found.folder} at step {found.manifest.position.step}{_told(rt, found.manifest)}")


def _told(rt: SharedTorchRuntime, manifest: Manifest) -> str:
    """What is not now as it was when the checkpoint was saved."""
    plan, about = rt.job.plan, manifest.about
    pairs = [
        ("in", about.get("precision"), plan.precision.value),
        ("by torch", _release(manifest.versions.get("torch")), _release(torch.__version__)),
        ("on", about.get("backend"), plan.backend),
        ("under", about.get("strategy"), rt.strategy_decision.value),
        ("at world size", manifest.position.world_size, rt.world_size),
        ("with virtual ranks", about.get("virtual_ranks"), rt.job.settings.virtual_ranks or "none"),
    ]
    differ = [(word, was, now) for word, was, now in pairs if was is not None and was != now]
    if not differ:
        return ""
    before = ", ".join(f"{word} {was}" for word, was, _ in differ)
    return f"; saved {before}; goes on {', '.join(f'{word} {now}' for word, _, now in differ)}"


def _release(version: str | None) -> str | None:
    """A version without the name of its build."""
    return version and version.partition("+")[0]


# weights


def _load_weights(model: nn.Module, folder: Path, name: str) -> None:
    try:
        reader = Reader(folder, name)
    except FileNotFoundError:
        raise CheckpointError(
            f"it holds no {name}.safetensors: fewer models were saved than are prepared now", where=str(folder)
        ) from None
    with reader:
        state, groups = state_of(model), weights(model)
        saved = {kept: [name for name in names if name in reader.slots] for kept, names in groups.items()}
        known = {name for names in groups.values() for name in names}
        missing = sorted(kept for kept, names in saved.items() if not names)
        extra = sorted(reader.slots.keys() - known)
        untied = sorted(name for names in saved.values() for name in names[1:])
        if missing or extra or untied:
            raise _changed("the model", missing, extra, folder, untied)
        shapes = [(names[0], reader.slots[names[0]].shape, tuple(state[kept].shape)) for kept, names in saved.items()]
        wrong = [f"{key} has shape {was} in the checkpoint and {now} in the model" for key, was, now in shapes if was != now]
        if wrong:
            raise CheckpointError(_some(wrong, "; "), where=str(folder), hint=SAME_MODEL)
        for kept, names in saved.items():
            _fill(state[kept], reader, names[0])


def _fill(tensor: torch.Tensor, reader: Reader, name: str) -> None:
    """Reads a saved tensor into one of its shape; of a sharded one this rank's rows."""
    rows, first = rows_of(tensor.detach(), name)
    reader.read(name, rows, first)


def _some(names: list[str], between: str = ", ") -> str:
    return between.join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _changed(what: str, missing: list[str], extra: list[str], path: Path, untied: list[str] | None = None) -> CheckpointError:
    parts = [f"not in the checkpoint: {_some(missing)}"] if missing else []
    parts += [f"only in the checkpoint: {_some(extra)}"] if extra else []
    parts += [f"tied now, and not in the checkpoint: {_some(untied)}"] if untied else []
    return CheckpointError(f"{what} is not the one that was saved; " + "; ".join(parts), where=str(path), hint=SAME_MODEL)


# everything else


def _load_state(rt: SharedTorchRuntime, folder: Path) -> None:
    document = tree.decode(json.loads((folder / f"{STATE}.json").read_text(encoding="utf-8")), Stored)
    for kind, objects in (("models", rt.models), ("optimizers", rt.optimizers), ("schedulers", rt.schedulers)):
        if len(document[kind]) != len(objects):
            raise CheckpointError(
                f"the checkpoint holds {len(document[kind])} {kind}, rt.prepare() was given {len(objects)}",
                where=str(folder),
                hint="give rt.prepare() what was saved, or start anew without --resume",
            )
    with Reader(folder, STATE) as reader:
        optimizers = document.pop("optimizers")
        names = names_of(rt.models)
        for optimizer, saved in zip(rt.optimizers, optimizers, strict=True):
            _load_optimizer(optimizer, saved, group_names(optimizer, names), reader, folder)
        helds = document.pop("held", [{} for _ in rt.models])  # format 1 has none
        for model, values in zip(rt.models, helds, strict=True):
            _load_held(model, values, reader)
        document = _read(document, lambda stored: reader.whole(stored.key))
    for model, extra in zip(rt.models, document["models"], strict=True):
        if extra:
            model.load_state_dict(extra, strict=False)
    for scheduler, saved in zip(rt.schedulers, document["schedulers"], strict=True):
        scheduler.load_state_dict(saved)
    rt.gradients.load_state_dict(document["gradients"])
    rt.host_random.drawn = document["reseed"]


def _read(value: Any, read: Callable[[Stored], torch.Tensor]) -> Any:
    return tree_map_only(Stored, read, value)


def _load_held(model: nn.Module, values: dict[str, Stored], reader: Reader) -> None:
    """Puts back what modules held besides their state, in place where it has the same shape."""
    for full, module, name in list(held(model)):
        if full in values:
            here: torch.Tensor = getattr(module, name)
            slot = reader.slots[values[full].key]
            if here.is_meta or here.requires_grad or (tuple(here.shape), here.dtype) != (slot.shape, slot.dtype):
                setattr(module, name, reader.whole(values[full].key, "cpu" if here.is_meta else here.device))
            else:
                reader.read(values[full].key, here)


def _load_optimizer(
    optimizer: torch.optim.Optimizer, saved: dict[str, Any], groups: list[list[str]], reader: Reader, folder: Path
) -> None:
    """By name: groups and parameters may stand in another order than when they were saved."""
    if saved["class"] != type(optimizer).__name__:
        raise CheckpointError(
            f"the checkpoint's optimizer is {saved['class']}, this run's is {type(optimizer).__name__}",
            where=str(folder),
            hint="the optimizer that was saved, or start anew without --resume",
        )
    here = [name for group in groups for name in group]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    options = {name: group for group in saved["groups"] for name in group["params"]}
    if set(here) != set(options):
        missing, extra = sorted(set(here) - set(options)), sorted(set(options) - set(here))
        raise _changed("the optimizer", missing, extra, folder)
    raw = optimizer.state_dict()
    for group, names in zip(raw["param_groups"], groups, strict=True):
        if names:
            known = {key: value for key, value in options[names[0]].items() if key != "params"}
            group.update(_read(known, lambda stored: reader.whole(stored.key)))
    raw["state"] = {
        number: _read(saved["state"][name], partial(_beside, parameter, reader))
        for number, (name, parameter) in enumerate(zip(here, parameters, strict=True))
        if name in saved["state"]
    }
    optimizer.load_state_dict(raw)


def _beside(parameter: torch.Tensor, reader: Reader, stored: Stored) -> torch.Tensor:
    """A tensor of an optimizer's state, where the optimizer would have it: beside a sharded parameter it is cut like that,
    if it has as many rows, and whole on every rank otherwise. Numbers stay on the host, from where the optimizer takes them.
    """
    slot = reader.slots[stored.key]
    if not slot.shape:
        return reader.whole(stored.key)
    if not isinstance(parameter, DTensor):
        return reader.whole(stored.key, parameter.device)
    size, first, cut = part_of(slot.shape, parameter)
    rows = torch.empty(size, dtype=slot.dtype, device=parameter.to_local().device)
    reader.read(stored.key, rows, first)
    return sharded(rows, slot.shape, parameter.device_mesh, cut)
