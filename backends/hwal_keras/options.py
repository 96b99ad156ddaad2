"""What model.compile is to be told here, and whether it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    if model.jit_compile and not rt.jit:
        model.jit_compile = False
        rt.say_once(f"model {model.name}: jit_compile is off, which {rt.why_no_jit}; **rt.compile_options() says so at once")
    elif rt.jit and not model.jit_compile and (layers := without_xla(model)):
        named = ", ".join(layers[:4]) + (f" and {len(layers) - 4} more" if len(layers) > 4 else "")
        rt.say_once(f"model {model.name}: Keras has turned XLA off, for the sake of {named}: it trains without, and slower")


def without_xla(model: Any) -> list[str]:
    """The layers that XLA cannot compile, by Keras's own account: `lookup (StringLookup)`."""
    return [f"{layer.name} ({type(layer).__name__})" for layer in _layers(model) if not getattr(layer, "supports_jit", True)]


def _layers(model: Any) -> list[Any]:
    found: list[Any] = []
    for layer in getattr(model, "layers", ()):
        found.append(layer)
        found += _layers(layer)
    return found
