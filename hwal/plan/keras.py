"""What is otherwise for a Keras script: TensorFlow's strategies train it, which have no part in what is built for torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hwal.env import SETTINGS, Settings
from hwal.errors import PlanError, UsageError, VersionError
from hwal.values import AUTO, Caps, Decision

BACKEND = "KERAS_BACKEND"
NEEDED = "tensorflow"
VARIABLES = {BACKEND: NEEDED, "TF_CPP_MIN_LOG_LEVEL": "2"}
"""What TensorFlow and Keras read when they are imported: that its C++ has nothing to say that is no error, among it."""
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
GPU_VARIABLES = {**VARIABLES, GROWTH: "true"}  # else it takes all memory with a script's first tensor
STRATEGIES = (AUTO, "single", "ddp")
TORCHS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "strategy": (lambda name: name not in STRATEGIES, "--strategy auto: every replica has a whole model"),
    "micro_batch": (lambda size: size is not None, "leave it out; a smaller global batch or more replicas; with one, gradient_"
                    "accumulation_steps=N of Keras's optimizers"),
    "grad_checkpoint": (bool, "leave it out; keras.RematScope in the script recomputes activations"),
    "compile": (bool, "leave it out: rt.compile_options() has XLA compile where that is right"),
    "deterministic": (bool, "leave it out; tf.config.experimental.enable_op_determinism() in the script"),
    "on_nan": (lambda what: what == "skip", "leave it out: a loss that is no number ends the run, and is not saved"),
}  # fmt: skip
"""Field of Settings -> (which values are not for Keras, what to do instead)."""


def refuse_torchs(settings: Settings) -> None:
    """Raises UsageError for a setting that only torch's runtimes carry out."""
    for row in SETTINGS:
        value = getattr(settings, row.field)
        means, instead = TORCHS.get(row.field, (None, ""))
        if means is not None and means(value):
            shown = row.flag + ("" if value is True else f" {value}")
            raise UsageError(f"{shown} is for torch scripts, and this is one of Keras", where=shown, hint=instead)


def drives_all(caps: Caps) -> bool:
    """Whether one process drives all devices of a machine: TensorFlow's does, but for CPUs, of which it knows one."""
    return caps.spmd or not caps.shares_devices


def decide_replicas(settings: Settings, world: int, devices: int, one_process: bool) -> tuple[Decision, tuple[str, ...]]:
    """How a Keras model is laid over `devices` of `world` processes, and what to know of it.

    --virtual-ranks N makes N logical devices of the one that there is, which stand for as many replicas of an accelerator.
    `one_process`: one process drives all devices. Raises PlanError for a number that does not fit.
    """
    parts = settings.virtual_ranks or devices
    if parts != devices and (one_process or parts % world):
        raise PlanError(
            f"{parts} replicas on {devices} device{'s' * (devices > 1)} of {world} process{'es' * (world > 1)}",
            where=f"--virtual-ranks {parts}",
            why="a Keras model has a replica on each device; logical devices are made of a CPU, equally many in each process",
            hint="leave --virtual-ranks out, or --device cpu",
        )
    if settings.strategy == "single" and parts > 1:
        raise PlanError(f"single is for one replica, and there are {parts} ({parts} ≠ 1)", where="--strategy single")
    if parts == 1:
        return Decision("single", "one replica"), ()
    note = (f"virtual ranks: {parts // world} logical devices of each process's CPU, slower than one",) * (parts != devices)
    return Decision("ddp", f"{parts} replicas, a whole model on each"), note


def check_backend(environ: Mapping[str, str]) -> None:
    """Raises VersionError where the user has Keras compute by another library than TensorFlow."""
    name = environ.get(BACKEND)
    if name not in (None, "", NEEDED):
        raise VersionError(
            f"Keras is to compute by {name}, and hwal trains Keras models by TensorFlow's strategies",
            where=f"{BACKEND}={name}",
            why="replicas, TPUs and several machines are TensorFlow's; for torch hwal has a runtime of its own",
            hint=f"unset {BACKEND}, or {BACKEND}={NEEDED}; the file keras.json may say so too",
        )
