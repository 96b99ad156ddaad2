"""What model.compile is to be told here, and whether it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from hwal.errors import VersionError
from hwal_keras.step import check_weighable

if TYPE_CHECKING:
    from hwal_keras.runtime import SharedKerasRuntime

OLDEST = (3, 8)  # the first whose losses and their metrics agree on what a replica's part is


def check_version(version: str) -> None:
    """Raises VersionError for a Keras that weighs the losses of replicas otherwise."""
    oldest = ".".join(map(str, OLDEST))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise VersionError(
            f"this is Keras {version}, and hwal trains by Keras {oldest} or later",
            where="rt.start",
            why="older ones do not say by how many replicas a loss is divided: losses and gradients would be multiples",
            hint=f"pip install 'keras>={oldest}'",
        )


def check_model(rt: SharedKerasRuntime, model: Any) -> None:
    """Holds what a model was compiled with against what this hardware needs; mends XLA's switch, and says so."""
    replicas = rt.strategy.num_replicas_in_sync
    check_weighable(model, replicas)
    if replicas > 1 and (told := mixes_samples(model)) is not None:
        rt.say_once(f"model {model.name}: {told}")
    if model.jit_compile and not rt.jit:
        model.jit_compile = False
        rt.say_once(f"model {model.name}: jit_compile is off, which {rt.why_no_jit}; **rt.compile_options() says so at once")
    elif rt.jit and not model.jit_compile and (layers := without_xla(model)):
        named = ", ".join(layers[:4]) + (f" and {len(layers) - 4} more" if len(layers) > 4 else "")
        rt.say_once(f"model {model.name}: XLA is off, as it must be for {named}: it trains without, and slower")


def without_xla(model: Any) -> list[str]:
    """The layers that XLA cannot compile, by Keras's own account: `lookup (StringLookup)`."""
    return [f"{layer.name} ({type(layer).__name__})" for layer in _layers(model) if not getattr(layer, "supports_jit", True)]


def mixes_samples(model: Any) -> str | None:
    """Which layers mix the samples of a batch, and so see another batch at each number of replicas."""
    mixing = [layer for layer in _layers(model) if isinstance(layer, keras.layers.BatchNormalization)]
    if not mixing:
        return None
    names = f"{', '.join(layer.name for layer in mixing[:3])}{' …' if len(mixing) > 3 else ''}"
    if all(layer.synchronized for layer in mixing):
        return f"{names}: synchronized batch norm spans the replicas, and where their rows differ it counts those that fill up"
    return (
        f"{names}: batch norm sees one replica's part, so the curve depends on how many there are; "
        "BatchNormalization(synchronized=True) spans the replicas, and GroupNormalization mixes no samples"
    )


def _layers(model: Any) -> list[Any]:
    found: list[Any] = []
    for layer in getattr(model, "layers", ()):
        found.append(layer)
        found += _layers(layer)
    return found
