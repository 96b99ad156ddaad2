"""What a Keras checkpoint holds, and how it comes and goes. At any number of replicas it is the same.

model.weights.h5     the model's weights, as model.load_weights reads them (model-1.weights.h5 … for further models)
state.h5             of each optimizer its variables, as its save_own_variables gives them
hwal.json            position and checksums (hwal.checkpoint)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import keras
import tensorflow as tf

from hwal.checkpoint import FileSum, Manifest
from hwal.errors import CheckpointError
from hwal.resuming import Found, find
from hwal.retention import metrics_for

if TYPE_CHECKING:
    from hwal_keras.runtime import SharedKerasRuntime

STATE = "state.h5"
SAME_MODEL = "resume with the model that was saved, or start anew without --resume"


def choose(rt: SharedKerasRuntime) -> Found | None:
    """The checkpoint that the run goes on from, if --resume names one, or it was started again. Raises CheckpointError."""
    if rt.job.again:
        if (own := rt.checkpoints.newest(rt.say)) is not None:
            return Found(*own)
        rt.reporter.resumed(0)
    source = rt.job.settings.resume
    return None if source is None else find(Path(source), rt.checkpoints, rt.run_dir, rt.framework, rt.say)


def told(rt: SharedKerasRuntime) -> str:
    """`resumed runs/a/checkpoints/step-00000012 at step 12; …`, with what is not now as it was."""
    assert rt.found is not None
    manifest = rt.found.manifest
    now = _about(rt)
    differ = [(name, was, now[name]) for name, was in manifest.about.items() if name in now and now[name] != was]
    text = f"resumed {rt.found.folder} at step {manifest.position.step}"
    if differ:
        text += "; saved with " + ", ".join(f"{name} {was}" for name, was, _ in differ)
        text += "; goes on with " + ", ".join(f"{name} {value}" for name, _, value in differ)
    return text


def save(rt: SharedKerasRuntime, path: Path | None) -> Path:
    """Saves everything prepared; returns the folder, which is whole then. Every process calls it, the first one writes."""
    target = path or rt.checkpoints.path(rt.steps_done)
    if rt.is_main:
        metrics = metrics_for(rt.checkpoints.keep, rt.reporter.latest, rt.say_once)

        def manifest(files: dict[str, FileSum]) -> Manifest:
            versions = {"keras": keras.__version__, "tensorflow": tf.__version__}
            about = {**_about(rt), "passes": rt.passes.to_save(rt.unfinished)}
            return Manifest(rt.progress.position(), files, rt.framework, versions, about, metrics)

        with rt.checkpoints.writing(target, manifest) as folder:
            for number, model in enumerate(rt.models):
                if model.built:
                    model.save_weights(folder / _file(number))
            with h5py.File(folder / STATE, "w") as file:
                for number, optimizer in enumerate(rt.optimizers):
                    if optimizer.built:
                        group = file.create_group(str(number))
                        group.attrs["class"] = type(optimizer).__name__
                        optimizer.save_own_variables(group)
            rt.reporter.flush()
    rt.barrier()
    return target


def _about(rt: SharedKerasRuntime) -> dict[str, Any]:
    plan = rt.job.plan
    return {
        "backend": plan.backend,
        "precision": plan.precision.value,
        "replicas": rt.strategy.num_replicas_in_sync,
        "processes": rt.world_size,
    }


def _file(number: int) -> str:
    return f"model-{number}.weights.h5" if number else "model.weights.h5"


def load(rt: SharedKerasRuntime, number: int, model: Any) -> None:
    """Loads a model's weights and its optimizer's state. Raises CheckpointError where they are not this model's."""
    assert rt.found is not None
    folder = rt.found.folder
    path = folder / _file(number)
    if not path.exists():
        raise CheckpointError(f"it holds no {path.name}: fewer models were saved than are prepared now", where=str(folder))
    with rt.strategy.scope():
        try:
            model.load_weights(path)
        except (ValueError, KeyError) as error:
            what = str(error).strip().splitlines()[0]
            raise CheckpointError(
                f"the model is not the one that was saved: {what}", where=str(path), hint=SAME_MODEL
            ) from None
        optimizer = getattr(model, "optimizer", None)
        for place, one in enumerate(rt.optimizers):
            if one is optimizer or (optimizer is None and one.built):
                _load_optimizer(one, place, folder)


def load_optimizer(rt: SharedKerasRuntime, optimizer: Any) -> None:
    """Loads the state of an optimizer that no model was compiled with."""
    assert rt.found is not None
    with rt.strategy.scope():
        _load_optimizer(optimizer, next(n for n, one in enumerate(rt.optimizers) if one is optimizer), rt.found.folder)


def _load_optimizer(optimizer: Any, place: int, folder: Path) -> None:
    with h5py.File(folder / STATE, "r") as file:
        if str(place) not in file:
            raise CheckpointError("it holds no such optimizer: fewer were saved than are prepared now", where=str(folder))
        group = file[str(place)]
        if group.attrs["class"] != type(optimizer).__name__:
            raise CheckpointError(
                f"the checkpoint's optimizer is {group.attrs['class']}, this run's is {type(optimizer).__name__}",
                where=str(folder),
                hint="the optimizer that was saved, or start anew without --resume",
            )
        saved, here = len(group), len(optimizer.variables)
        wrong = saved != here or any(
            tuple(group[str(n)].shape) != tuple(variable.shape) for n, variable in enumerate(optimizer.variables)
        )
        if wrong:
            raise CheckpointError(
                f"the optimizer is not the one that was saved: {saved} variables then, {here} now, or of other shapes",
                where=str(folder),
                hint=SAME_MODEL,
            )
        optimizer.load_own_variables(group)
