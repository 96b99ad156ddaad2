"""What a torch checkpoint holds, and how it comes back.

    model.safetensors     plain weights under the model's own names (model-1.safetensors … for further models)
    config.json …         for transformers models: what from_pretrained wants beside them
    state.safetensors     optimizer tensors, by parameter name
    state.json            everything else of optimizers, schedulers and the loss scaler
    hwal.json             position and checksums (hwal.checkpoint)

Everything is saved under names, so that it does not matter how many ranks, or which strategy, saved or loads it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from hwal.checkpoint import MANIFEST, Checkpoints, FileSum, Manifest, verify
from hwal.errors import CheckpointError
from hwal_torch import tree
from hwal_torch.optim import group_names, names_of

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime

STATE = "state"
KERNEL = ("fused", "foreach", "capturable", "differentiable")  # how an optimizer computes, not what: stays this run's own


def model_file(number: int) -> str:
    return f"model-{number}.safetensors" if number else "model.safetensors"


# save


def save(rt: SharedTorchRuntime, path: Path | None) -> Path:
    """Writes a checkpoint of everything prepared and returns its folder. Every rank calls it; the main one writes."""
    target = path or rt.checkpoints.path(rt.steps_done)
    if rt.is_main:
        with rt.checkpoints.writing(target, lambda files: _manifest(rt, files)) as folder:
            for number, model in enumerate(rt.models):
                _save_model(model, folder, number)
            _save_state(rt, folder)
    rt.barrier()
    return target


def _manifest(rt: SharedTorchRuntime, files: dict[str, FileSum]) -> Manifest:
    plan = rt.job.plan
    return Manifest(
        position=rt.progress.position(),
        files=files,
        framework="torch",
        versions={"torch": torch.__version__},
        about={"backend": plan.backend, "precision": plan.precision.value, "strategy": rt.strategy_decision.value},
    )


def _save_model(model: nn.Module, folder: Path, number: int) -> None:
    tensors, _ = distinct(model.state_dict(), getattr(model, "_tied_weights_keys", None) or ())
    _write(tensors, folder / model_file(number))
    config: Any = getattr(model, "config", None)
    if number == 0 and hasattr(config, "save_pretrained"):
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
        generation = getattr(model, "generation_config", None)
        if generation is not None:
            generation.save_pretrained(folder)


def _write(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Raises OSError when the disk is full: safetensors wraps it in an error of its own."""
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def distinct(state: Mapping[str, Any], give_way: Any = ()) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a state dict, each once and contiguous; and alias -> name for those that share one (tied weights).

    Of tied names the first stays, except that those in `give_way` (transformers' own list) leave the place to another.
    """
    groups: dict[Any, list[str]] = {}
    for name, tensor in state.items():
        if isinstance(tensor, torch.Tensor):
            key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype) if tensor.numel() else name
            groups.setdefault(key, []).append(name)
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    for names in groups.values():
        kept = next((name for name in names if name not in give_way), names[0])
        tensor = state[kept].detach()
        whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        tensors[kept] = tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
        aliases.update((name, kept) for name in names if name != kept)
    return tensors, aliases


def _save_state(rt: SharedTorchRuntime, folder: Path) -> None:
    names = names_of(rt.models)
    rt.host_random.look()
    document = {
        "models": [_extra(model) for model in rt.models],
        "optimizers": [_named(optimizer, group_names(optimizer, names)) for optimizer in rt.optimizers],
        "schedulers": [scheduler.state_dict() for scheduler in rt.schedulers],
        "gradients": rt.gradients.state_dict(),
        "reseed": rt.host_random.drawn,
    }
    tensors: dict[str, torch.Tensor] = {}
    plain = tree.encode(document, tensors, "")
    _write({key: tensor.contiguous().clone() for key, tensor in tensors.items()}, folder / f"{STATE}.safetensors")
    (folder / f"{STATE}.json").write_text(json.dumps(plain), encoding="utf-8")


def _extra(model: nn.Module) -> dict[str, Any]:
    """What a model's state holds besides tensors (get_extra_state of its layers)."""
    return {name: value for name, value in model.state_dict().items() if not isinstance(value, torch.Tensor)}


def _named(optimizer: torch.optim.Optimizer, groups: list[list[str]]) -> dict[str, Any]:
    """An optimizer's state_dict with parameter names where torch has numbers."""
    raw = optimizer.state_dict()
    name_of = {
        number: name
        for group, names in zip(raw["param_groups"], groups, strict=True)
        for number, name in zip(group["params"], names, strict=True)
    }
    return {
        "class": type(optimizer).__name__,
        "state": {name_of[number]: values for number, values in raw["state"].items()},
        "groups": [
            {**{key: value for key, value in group.items() if key not in KERNEL}, "params": names}
            for group, names in zip(raw["param_groups"], groups, strict=True)
        ],
    }


# restore


def restore(rt: SharedTorchRuntime) -> None:
    """Loads the newest good checkpoint of the folder that --resume names, if it was given. Raises CheckpointError."""
    source = rt.job.settings.resume
    if source is None:
        return
    folder, manifest = find(Path(source), rt)
    if manifest.framework != "torch":
        raise CheckpointError(f"it was saved by a {manifest.framework} script", where=str(folder))
    for number, model in enumerate(rt.models):
        _load_model(model, folder / model_file(number))
    _load_state(rt, folder)
    rt.resume_at(manifest.position)
    was = manifest.about.get("precision")
    now = rt.job.plan.precision.value
    rt.say(
        f"resumed {folder} at step {manifest.position.step}"
        + (f"; it was saved in {was}, goes on in {now}" if was != now else "")
    )


def find(source: Path, rt: SharedTorchRuntime) -> tuple[Path, Manifest]:
    """The checkpoint that `source` is, or the newest good one of the run that it is."""
    if (source / MANIFEST).exists():
        return source, verify(source)
    checkpoints = Checkpoints(source / "checkpoints")
    found = checkpoints.newest(rt.say)
    if found is None and (damaged := len(checkpoints.found())):
        raise CheckpointError(
            f"all {damaged} checkpoint(s) of the run are damaged; the lines above say how",
            where=str(source),
            hint="start anew without --resume, into another --out",
        )
    if found is None:
        raise CheckpointError(
            "there is no checkpoint to resume from" if source.exists() else "there is no such folder",
            where=str(source),
            hint="--resume takes the folder of a run (the one that holds metrics.jsonl and checkpoints/), or one checkpoint",
        )
    return found


def _load_model(model: nn.Module, path: Path) -> None:
    """Copies weights into the model tensor by tensor, so that no second copy of it is ever held."""
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    _, aliases = distinct(state, getattr(model, "_tied_weights_keys", None) or ())
    if not path.exists():
        raise CheckpointError(f"it holds no {path.name}: fewer models were saved than are prepared now", where=str(path.parent))
    with safe_open(path, framework="pt") as file, torch.no_grad():
        saved = set(file.keys())
        same = {name: aliases.get(name, name) for name in state}
        missing = sorted(name for name in state if name not in saved and same[name] not in saved)
        extra = sorted(saved - set(state))
        if missing or extra:
            raise _changed("the model", missing, extra, path)
        for name in sorted(saved):
            tensor = file.get_tensor(name)
            if tensor.shape != state[name].shape:
                raise CheckpointError(
                    f"{name} has shape {tuple(tensor.shape)} in the checkpoint and {tuple(state[name].shape)} in the model",
                    where=str(path),
                    hint="resume with the model that was saved, or start anew without --resume",
                )
            state[name].copy_(tensor)


def _changed(what: str, missing: list[str], extra: list[str], path: Path) -> CheckpointError:
    def some(names: list[str]) -> str:
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    parts = [f"not in the checkpoint: {some(missing)}"] if missing else []
    parts += [f"only in the checkpoint: {some(extra)}"] if extra else []
    return CheckpointError(
        f"{what} is not the one that was saved; " + "; ".join(parts),
        where=str(path),
        hint="resume with the model that was saved, or start anew without --resume",
    )


def _load_state(rt: SharedTorchRuntime, folder: Path) -> None:
    with safe_open(folder / f"{STATE}.safetensors", framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
    document = tree.decode(json.loads((folder / f"{STATE}.json").read_text(encoding="utf-8")), tensors)
    for kind, objects in (("models", rt.models), ("optimizers", rt.optimizers), ("schedulers", rt.schedulers)):
        if len(document[kind]) != len(objects):
            raise CheckpointError(
                f"the checkpoint holds {len(document[kind])} {kind}, rt.prepare() was given {len(objects)}", where=str(folder)
            )
    for model, extra in zip(rt.models, document["models"], strict=True):
        if extra:
            model.load_state_dict(extra, strict=False)
    names = names_of(rt.models)
    for optimizer, saved in zip(rt.optimizers, document["optimizers"], strict=True):
        _load_optimizer(optimizer, saved, group_names(optimizer, names), folder)
    for scheduler, saved in zip(rt.schedulers, document["schedulers"], strict=True):
        scheduler.load_state_dict(saved)
    rt.gradients.load_state_dict(document["gradients"])
    rt.host_random.drawn = document["reseed"]


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any], groups: list[list[str]], folder: Path) -> None:
    """By name: groups and parameters may stand in another order than when they were saved."""
    if saved["class"] != type(optimizer).__name__:
        raise CheckpointError(
            f"the checkpoint's optimizer is {saved['class']}, this run's is {type(optimizer).__name__}", where=str(folder)
        )
    here = [name for group in groups for name in group]
    options = {name: group for group in saved["groups"] for name in group["params"]}
    if set(here) != set(options):
        missing, extra = sorted(set(here) - set(options)), sorted(set(options) - set(here))
        raise _changed("the optimizer", missing, extra, folder)
    raw = optimizer.state_dict()
    for group, names in zip(raw["param_groups"], groups, strict=True):
        if names:
            group.update({key: value for key, value in options[names[0]].items() if key != "params"})
    raw["state"] = {number: saved["state"][name] for number, name in enumerate(here) if name in saved["state"]}
    optimizer.load_state_dict(raw)
