"""keras-layer-disables-jit

What: TextVectorization, StringLookup, IntegerLookup, Hashing, HashedCrossing and Keras's random geometric layers inside a
    model.

Why: They say `supports_jit = False`, and Keras then runs the whole model without XLA, silently; a TPU cannot run it at all.

Bad:
    import keras

    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.RandomRotation(0.1), keras.layers.Flatten()])

Good:
    import keras

    augment = keras.layers.RandomRotation(0.1)

    def data(images):
        return images.map(lambda image: augment(image))

    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(1)])
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule, tpu_error
from hwal.lint.file import File

LAYERS = (
    "TextVectorization", "StringLookup", "IntegerLookup", "IndexLookup", "Hashing", "HashedCrossing", "RandomRotation",
    "RandomZoom", "RandomTranslation", "RandomShear", "RandomPerspective", "RandomCrop",
)  # fmt: skip


def _check(file: File) -> Iterator[Finding]:
    for name, call, _ in file.named_calls:
        last = name.rpartition(".")[2]
        if name.startswith("keras.layers.") and last in LAYERS and in_model(file, call):
            yield Finding(
                call,
                f"{last} cannot be compiled, and Keras turns XLA off for the whole model, silently",
                "apply it in the input pipeline: dataset.map(layer)",
            )


def in_model(file: File, call: ast.Call) -> bool:
    """Whether a layer becomes a part of a model: it stands in Sequential([...]) or is called on another layer's output, and not
    only in a dataset's map."""
    parents = file.source.parents
    holder = parents.get(call)
    while isinstance(holder, ast.List | ast.Tuple):
        holder = parents.get(holder)
    if isinstance(holder, ast.Call):
        name = file.source.names.resolve(holder.func)
        if name in ("keras.Sequential", "keras.models.Sequential"):
            target = parents.get(holder)
            if isinstance(target, ast.Assign) and isinstance(target.targets[0], ast.Name) and _preprocessing(file, holder):
                name = target.targets[0].id
                used = any(isinstance(other.func, ast.Name) and other.func.id == name for other, _ in file.source.calls)
                return not used or _called(file, name)
            return True
        if holder.func is call:  # RandomZoom(0.1)(x)
            return not _on_host(file, holder)
        return isinstance(holder.func, ast.Attribute) and holder.func.attr == "add"
    if isinstance(holder, ast.Assign):
        target = holder.targets[0]
        if isinstance(target, ast.Name):
            return _called(file, target.id)
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            return any(
                isinstance(c.func, ast.Attribute) and c.func.attr == target.attr and f is not None and f.name == "call"
                for c, f in file.source.calls
            )
    return False


def _preprocessing(file: File, model: ast.Call) -> bool:
    """Whether a Sequential holds preprocessing layers alone."""
    layers = model.args[0].elts if model.args and isinstance(model.args[0], ast.List | ast.Tuple) else []
    names = [file.source.names.resolve(layer.func) or "" for layer in layers if isinstance(layer, ast.Call)]
    return all(
        name.rpartition(".")[2].startswith(("Random", "Rescaling", "Resizing", "Center", "Normalization", "Input", *LAYERS))
        for name in names
    )


def _called(file: File, name: str) -> bool:
    """Whether a name is called, or put into a Sequential, outside a dataset's map."""
    for call, _ in file.source.calls:
        if isinstance(call.func, ast.Name) and call.func.id == name and not _on_host(file, call):
            return True
        if file.source.names.resolve(call.func) in ("keras.Sequential", "keras.models.Sequential") and call.args:
            layers = call.args[0].elts if isinstance(call.args[0], ast.List | ast.Tuple) else []
            if any(isinstance(layer, ast.Name) and layer.id == name for layer in layers):
                return True
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "add"
            and any(isinstance(a, ast.Name) and a.id == name for a in call.args)
        ):
            return True
    return False


def _on_host(file: File, call: ast.Call) -> bool:
    return any(
        file.source.by_node.get(outer) in file.contexts.host for outer in file.enclosing(call, ast.FunctionDef, ast.Lambda)
    )


RULE = Rule("XLA404", "keras-layer-disables-jit", tpu_error(), _check, __doc__, scope="module")
