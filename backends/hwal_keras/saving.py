"""What a Keras checkpoint holds, and how it comes and goes. At any number of replicas it is the same.

model.weights.h5     the model's weights, as model.load_weights reads them (model-1.weights.h5 … for further models)
state.h5             of each optimizer its variables, as its save_own_variables gives them
hwal.json            position and checksums (hwal.checkpoint); passes of the datasets; calls of fit that callbacks have ended;
                     states of the models' random generators
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import keras
import tensorflow as tf
from keras.src.saving import saving_lib  # not public; tried with Keras 3.15

from hwal.checkpoint import Checkpoints, FileSum, Manifest
from hwal.errors import CheckpointError
from hwal.host import Host
from hwal.resuming import Found, find
from hwal.retention import metrics_for
from hwal.shortage import no_room
from hwal_keras.trouble import size_of

if TYPE_CHECKING:
    from hwal_keras.runtime import SharedKerasRuntime

Write = Callable[[Any], object]  # writes a file, to a path or into a BytesIO

STATE = "state.h5"
SAME_MODEL = "resume with the model that was saved, or start anew without --resume"


def choose(rt: SharedKerasRuntime) -> Found | None:
    """The checkpoint that the run goes on from, if --resume names one, or it was started again. Raises CheckpointError."""
    if rt.job.again:
        if (own := rt.checkpoints.newest(rt.say)) is not None:
            return Found(*own)
        rt.reporter.resumed(0)
    source = rt.job.settings.resume
    if source is None:
        return None
    found = find(Path(source), rt.checkpoints, rt.run_dir, rt.framework, rt.say, rt.job.settings.out)
    if found is None:
        rt.reporter.resumed(0)
    return found


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


def save(rt: SharedKerasRuntime, path: Path | None, wait: bool) -> Path:
    """Saves everything prepared; returns the folder, which is there when the save is done. Every process calls it.

    The first one writes; training goes on meanwhile, unless it is to `wait`, or memory has no room for a copy.
    """
    target = path or rt.checkpoints.path(rt.steps_done)
    rt.saving.wait()  # one at a time, also for its copy's sake
    if rt.is_main:
        room = not wait and _room(rt)
        files = {name: _image(write) if room else write for name, write in _files(rt).items()}
        job = partial(_write, rt.checkpoints, target, files, _manifest(rt), rt.reporter.flush)
        if wait:
            job()
        elif room:
            rt.saving.start(job)
        else:
            rt.saving.run(job)
    if wait:
        rt.barrier()
    return target


def _files(rt: SharedKerasRuntime) -> dict[str, Write]:
    """The name of each file -> what writes it, to a path or into memory."""
    built = {_file(number): model for number, model in enumerate(rt.models) if model.built}
    return {
        **{name: partial(_write_weights, model) for name, model in built.items()},
        STATE: partial(_write_state, rt.optimizers, rt.replaced),
    }


def _write_weights(model: Any, into: Path | BytesIO) -> None:
    """As model.save_weights, which takes paths only."""
    store = saving_lib.H5IOStore(into, mode="w")
    saving_lib._save_state(model, weights_store=store, assets_store=None, inner_path="", visited_saveables=set())
    store.close()


def _write_state(optimizers: Sequence[Any], replaced: Mapping[int, int], into: Path | BytesIO) -> None:
    with h5py.File(into, "w") as file:
        for number, optimizer in enumerate(optimizers):
            if optimizer.built:
                group = file.create_group(str(number))
                group.attrs["class"] = type(optimizer).__name__
                group.attrs["replaced"] = replaced[number]
                optimizer.save_own_variables(group)


def _image(write: Write) -> Write:
    """Writes a file into memory now, and returns what writes that to a path."""
    memory = BytesIO()
    write(memory)
    return lambda path: path.write_bytes(memory.getbuffer())


def _room(rt: SharedKerasRuntime) -> bool:
    """Whether the host has memory for a copy."""
    models, optimizers = (
        size_of([each for thing in things for each in thing.variables]) for things in (rt.models, rt.optimizers)
    )
    told = no_room(models + 2 * optimizers, Host())  # Keras writes a compiled model's optimizer beside its weights too
    if told is not None:
        rt.say_once(told)
    return told is None


def _manifest(rt: SharedKerasRuntime) -> Callable[[dict[str, FileSum]], Manifest]:
    """What makes the manifest of this moment."""
    metrics = metrics_for(rt.checkpoints.keep, rt.reporter.latest, rt.say_once)
    versions = {"keras": keras.__version__, "tensorflow": tf.__version__}
    passes, fits = rt.passes.to_save(rt.unfinished), rt.fits.to_save()
    about = {**_about(rt), "passes": passes, "fits": fits, "seeds": _seeds(rt)}
    position, framework = rt.progress.position(), rt.framework
    return lambda files: Manifest(position, files, framework, versions, about, metrics)


def _write(
    checkpoints: Checkpoints, target: Path, files: Mapping[str, Write], manifest: Callable[[dict[str, FileSum]], Manifest],
    flush: Callable[[], None],
) -> None:  # fmt: skip
    """Makes the checkpoint. `flush` has the steps' lines written before."""
    with checkpoints.writing(target, manifest) as folder:
        for name, write in files.items():
            write(folder / name)
        flush()


def _about(rt: SharedKerasRuntime) -> dict[str, Any]:
    plan = rt.job.plan
    return {
        "backend": plan.backend,
        "precision": plan.precision.value,
        "replicas": rt.strategy.num_replicas_in_sync,
        "processes": rt.world_size,
    }


def _seeds(rt: SharedKerasRuntime) -> dict[str, list[list[int]]]:
    """Where the random generators of each model's layers stand, dropout's say: a seed, and how often they have drawn."""
    built = [(number, model) for number, model in enumerate(rt.models) if model.built]
    return {str(number): [state.numpy().tolist() for state in _generators(model)] for number, model in built}


def _generators(model: Any) -> list[Any]:
    """The states that Keras has among a model's variables, and not among its weights: no file of weights holds them."""
    weights = {id(one) for one in model.weights}
    return [one for one in model.variables if id(one) not in weights]


def _load_seeds(rt: SharedKerasRuntime, number: int, model: Any) -> None:
    assert rt.found is not None
    saved, states = rt.found.manifest.about.get("seeds", {}).get(str(number), ()), _generators(model)
    if len(saved) == len(states):
        for state, value in zip(states, saved, strict=True):
            state.assign(value)


def _file(number: int) -> str:
    return f"model-{number}.weights.h5" if number else "model.weights.h5"


def load(rt: SharedKerasRuntime, number: int, model: Any) -> None:
    """Loads a model's weights and its optimizer's state. Raises CheckpointError where they are not this model's."""
    assert rt.found is not None
    folder = rt.found.folder
    path = folder / _file(number)
    if not path.exists():
        raise CheckpointError(f"it holds no {path.name}: fewer models were saved than are prepared now", where=str(folder))
    with rt.strategy.scope(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Skipping variable loading")  # what is wrong is said below, in words
        try:
            model.load_weights(path)
        except (ValueError, KeyError) as error:
            what = str(error).strip().splitlines()[0]
            raise CheckpointError(
                f"the model is not the one that was saved: {what}", where=str(path), hint=SAME_MODEL
            ) from None
        _load_seeds(rt, number, model)
        load_optimizers(rt, number)


def load_optimizers(rt: SharedKerasRuntime, number: int) -> None:
    """Loads the state of a model's optimizer, and of those that no model has. Raises CheckpointError for another one's.

    Where a script compiles a model several times, the state is that of one of its optimizers, and is loaded into no other.
    """
    assert rt.found is not None
    compiled = [getattr(known, "optimizer", None) for known in rt.models]
    for place, one in enumerate(rt.optimizers):
        if one is compiled[number] or (one.built and not any(one is known for known in compiled)):
            saved = _load_optimizer(one, place, rt.replaced[place], rt.found.folder)
            (rt.awaited.add if saved > rt.replaced[place] else rt.awaited.discard)(place)


def _load_optimizer(optimizer: Any, place: int, replaced: int, folder: Path) -> int:
    """Returns how many optimizers the saved one had replaced: where that is not `replaced`, nothing is loaded."""
    with h5py.File(folder / STATE, "r") as file:
        if str(place) not in file:
            raise CheckpointError("it holds no such optimizer: fewer were saved than are prepared now", where=str(folder))
        group = file[str(place)]
        before = int(group.attrs.get("replaced", 0))
        if before != replaced:
            return before
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
        return before
