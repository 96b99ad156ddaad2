"""Measures the fate of small TensorFlow programs under XLA, and writes it into their headers.

    python tests/bench/lint_measure.py FILE... [--only NAME] [--check]

A FILE holds programs, each below a header:

    #: NAME; call EXPRESSION; tpu VERDICT; cpu VERDICT

EXPRESSION is a call with the arguments it is measured with, `step(tf.ones([4]), 3)`; `random` in the place of `call` does not
compare its results, `fresh` makes its owner anew; `fit EXPRESSION` is for a model, its inputs and targets. A line that ends in
`#!` is the culprit that a person named. `#: file NAME` begins a second file of the same program, which the first may import.
What stands below `if __name__ == "__main__":` is linted and not run.

Verdicts: ok; trace_error (tracing raises); compile_error; silent_wrong (the result is not eager's); value_baked (compiles with
the values at hand and not from their shapes, which is what a TPU must do); keras_disables_jit; unusable (eager code raises).
The stock CPU wheel, lowering from TensorSpecs, stands for a TPU: it agreed with the TPU's own lowering in 303 of 304 programs.
Each program runs in a process of its own: some kernels abort it. --check says which verdicts changed, and writes nothing.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from tests.lint.programs import Program, parse, render  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--only", help="measure programs whose names contain this")
    parser.add_argument("--check", action="store_true", help="say what changed, and write nothing")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    changed = 0
    for path in given.files:
        measured = []
        for program in parse(path.read_text(encoding="utf-8")):
            if program.verdicts is not None and given.only is not None and given.only not in program.name:
                measured.append(program)
                continue
            found = in_a_process(program)
            verdicts = {"tpu": found["tpu"], "cpu": found["cpu"]}
            if verdicts != program.verdicts:
                changed += 1
                print(f"{path.name} {program.name}: {verdicts} (was {program.verdicts}) {found['why']}", flush=True)
            measured.append(program._replace(verdicts=verdicts))
        if not given.check:
            path.write_text(render(measured), encoding="utf-8")
    print(f"{changed} changed")
    return 1 if given.check and changed else 0


def in_a_process(program: Program) -> dict[str, Any]:
    """The verdicts of one program; a process that dies is a compile error."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        with os.fdopen(write, "w") as out:
            json.dump(measure(program), out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"tpu": "compile_error", "cpu": "compile_error", "why": "the process died"}


def measure(program: Program) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in program.files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        try:
            names = load()
            if program.how == "fit":
                return fit(program, names)
            return call(program, names)
        except Exception as error:
            return {"tpu": "unusable", "cpu": "unusable", "why": said(error)}


def load() -> dict[str, Any]:
    """The names of the module that a program is, imported so that AutoGraph finds its source."""
    return vars(importlib.import_module("program"))


def said(error: BaseException) -> str:
    """An error in a line: its kind, the last line of the program that it names, what it says."""
    text = str(error)
    told = re.findall(r'program\.py", line (\d+)', text)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith("program.py")]
    line = told[-1] if told else lines[-1] if lines else "?"
    return f"{type(error).__name__} line {line}: {' '.join(re.sub(r'File .*', '', text).split())[:160]}"


def call(program: Program, names: dict[str, Any]) -> dict[str, Any]:
    """Eager, then traced from specs, compiled with values, and lowered from specs."""
    import tensorflow as tf

    node = ast.parse(program.call, mode="eval").body
    assert isinstance(node, ast.Call)

    def value(part: ast.expr) -> Any:
        return eval(compile(ast.Expression(part), "<call>", "eval"), {**names, "tf": tf})

    def arguments(specs: bool) -> tuple[list[Any], dict[str, Any]]:
        def one(part: ast.expr) -> Any:
            given = value(part)
            if not specs:
                return given
            return tf.nest.map_structure(
                lambda leaf: tf.type_spec_from_value(leaf) if tf.is_tensor(leaf) else leaf, given, expand_composites=False
            )

        return [one(a) for a in node.args], {k.arg: one(k.value) for k in node.keywords if k.arg}

    def function() -> Any:
        """What is called. Its owner is kept: a traced method holds it by a weak reference."""
        if isinstance(node.func, ast.Attribute):
            owner = value(node.func.value)
            names[f"owner {len(names)}"] = owner
            return getattr(owner, node.func.attr)
        found = value(node.func)
        names[f"owner {len(names)}"] = found
        return found

    target = function()
    args, kwargs = arguments(specs=False)
    tf.config.run_functions_eagerly(True)
    eager = target(*args, **kwargs)
    tf.config.run_functions_eagerly(False)
    if program.how == "fresh":  # a function that keeps variables is made anew
        target = function()
    compiled = target if getattr(target, "_jit_compile", False) else tf.function(target, jit_compile=True)
    specs, named = arguments(specs=True)
    try:
        compiled.get_concrete_function(*specs, **named)
    except Exception as error:
        return {"tpu": "trace_error", "cpu": "trace_error", "why": said(error)}
    cpu, why = "ok", ""
    try:
        result = compiled(*args, **kwargs)
        if not program.random and not same(eager, result):
            cpu, why = "silent_wrong", f"{eager} != {result}"[:300]
    except Exception as error:
        cpu, why = "compile_error", said(error)
    tpu = cpu
    if cpu != "silent_wrong":
        try:
            lowered(target, specs, named)
            tpu = "ok"
        except Exception as error:
            tpu, why = "value_baked" if cpu == "ok" else cpu, said(error)
    return {"tpu": tpu, "cpu": cpu, "why": why}


def lowered(target: Any, specs: list[Any], named: dict[str, Any]) -> None:
    """Lowers from specs. The lowering takes a flat list of tensors: structures are packed, and Python arguments bound."""
    import tensorflow as tf

    leaves = tf.nest.flatten((specs, named))
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, tf.TypeSpec)]

    def packed(*tensors: Any) -> Any:
        filled = list(leaves)
        for index, tensor in zip(places, tensors, strict=True):
            filled[index] = tensor
        args, kwargs = tf.nest.pack_sequence_as((specs, named), filled)
        return target(*args, **kwargs)

    tf.function(packed, jit_compile=True).experimental_get_compiler_ir(*(leaves[i] for i in places))(stage="hlo")


def same(a: Any, b: Any) -> bool:
    """Whether two structures of tensors are equal in shapes and, nearly, in values."""
    import numpy as np
    import tensorflow as tf

    xs, ys = tf.nest.flatten(a, expand_composites=True), tf.nest.flatten(b, expand_composites=True)
    for x, y in zip(xs, ys, strict=True):
        if x is None or y is None:
            if x is not y:
                return False
            continue
        x, y = np.asarray(x), np.asarray(y)
        if x.shape != y.shape or not (x.dtype.kind == y.dtype.kind and np.allclose(x, y, rtol=1e-3, atol=1e-4, equal_nan=True)):
            return False
    return True


def fit(program: Program, names: dict[str, Any]) -> dict[str, Any]:
    """One epoch with jit_compile, then the train step lowered from specs."""
    import keras
    import tensorflow as tf
    from keras.src.trainers.trainer import model_supports_jit

    def made() -> tuple[Any, Any, Any]:
        keras.utils.set_random_seed(0)
        model, x, y = eval(program.call, {**names, "tf": tf})
        if not model.compiled:
            model.compile("sgd", "mse")
        return model, x, y

    try:
        model, x, y = made()
    except Exception as error:
        return {"tpu": "trace_error", "cpu": "trace_error", "why": said(error)}
    if not model_supports_jit(model):
        return {"tpu": "keras_disables_jit", "cpu": "ok", "why": ""}
    model.jit_compile = True
    try:
        model.fit(x, y, batch_size=4, verbose=0)
    except Exception as error:
        text = said(error)
        kind = (
            "compile_error" if type(error).__module__.startswith("tensorflow") and "NotAllowed" not in text else "trace_error"
        )
        return {"tpu": kind, "cpu": kind, "why": text}
    specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec((4, *leaf.shape[1:]), leaf.dtype), (x, y))

    def step(*tensors: Any) -> Any:
        return model.train_step(tf.nest.pack_sequence_as(specs, tensors))

    compiled = tf.function(step, jit_compile=True, autograph=False)
    try:
        compiled.experimental_get_compiler_ir(*tf.nest.flatten(specs))(stage="hlo")
    except Exception as error:
        return {"tpu": "value_baked", "cpu": "ok", "why": said(error)}
    return {"tpu": "ok", "cpu": "ok", "why": ""}


if __name__ == "__main__":
    sys.exit(main())
