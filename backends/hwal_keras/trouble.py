"""Errors of TensorFlow and Keras in hwal's words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy
import tensorflow as tf

from hwal import shortage
from hwal.display import size
from hwal.errors import HwalError, OutputError, ScriptError, ShortageError
from hwal.host import Host

if TYPE_CHECKING:
    from hwal_keras.runtime import SharedKerasRuntime

FULL = ("No space left on device", "errno = 28")
HOST = "device:CPU:"  # in TensorFlow's words of a shortage: whose memory it was


def not_finite(rt: SharedKerasRuntime, step: int, loss: float, held: bool) -> ScriptError:
    """The error of a loss that is no number. `held`: its update was left out; else it was made in the call that computed it."""
    bad = next(
        (
            variable.path
            for model in rt.models
            for variable in model.trainable_variables
            if not numpy.isfinite(variable.numpy().astype("float32")).all()
        ),
        None,
    )
    update = "left out" if held else "made, and is not saved"
    return ScriptError(
        f"the loss of step {step} is {loss}",
        where=f"epoch {rt.epoch}; its update was {update}",
        why=f"{bad} is the first that is not finite" if bad else "all parameters are finite: it is the data or the loss",
        hint="a lower learning rate, clipnorm=1.0 in the optimizer or --precision fp32; --resume from the last checkpoint",
    )


def explain(rt: SharedKerasRuntime, error: BaseException | None) -> HwalError | None:
    """The words for an error that is a shortage of memory or of disk, None for any other."""
    if isinstance(error, tf.errors.ResourceExhaustedError | MemoryError):
        return _memory(rt, error)
    if isinstance(error, OSError) and any(words in str(error) for words in FULL):
        return OutputError(f"the disk is full: {error}".splitlines()[0], where=str(rt.run_dir), hint="free space")
    return None


def _memory(rt: SharedKerasRuntime, error: BaseException) -> ShortageError:
    """What was asked for, what there is, and what helps."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    of_host = rt.on_host or isinstance(error, MemoryError) or HOST in first
    limit = next(iter(shortage.limits(Host())), None) if of_host else None
    parts = [f"parameters {size(size_of(model.variables))}" for model in rt.models]
    parts += [f"{type(one).__name__} {size(size_of(one.variables))}" for one in rt.optimizers if one.built]
    memory = rt.memory()
    used = f"{size(memory.used)} in use of " if memory.used is not None else ""
    have = str(limit) if limit is not None else f"{used}{size(memory.total)} ({memory.source})" if memory.total else None
    when = f"in step {rt.steps_done + 1}" if rt.at_work is not None else f"after step {rt.steps_done}"
    replicas = rt.strategy.num_replicas_in_sync
    hint = "smaller global batches (dataset.batch(N), or --global-batch N); --precision bf16 (activations of half the size)"
    return ShortageError(
        f"out of memory: {first}",
        where=f"{rt.job.plan.backend}, {replicas} replica{'s' * (replicas > 1)}, {when}",
        why="; ".join(part for part in (have, ", ".join(parts)) if part) or None,
        hint=hint,
    )


def size_of(variables: Sequence[Any]) -> int:
    """Bytes of all of them."""
    return sum(math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in variables)


def no_part(thing: Any) -> ScriptError:
    """The error for what rt.prepare() was given that is neither a model nor an optimizer of Keras 3."""
    hint = "schedules of the learning rate belong to their optimizer"
    if type(thing).__module__.startswith("tf_keras"):
        hint = "this is Keras 2's (tf_keras): import keras, and leave TF_USE_LEGACY_KERAS out"
    return ScriptError(f"rt.prepare() takes Keras models and optimizers, not a {type(thing).__name__}", hint=hint)
