"""What a TPU's own compiler makes of a Keras train step, on a machine without a TPU.

TensorFlow lowers the whole step (model, loss, gradients, optimizer) from the shapes of a batch, without running it; libtpu
compiles it for a generation of chips, in a process of its own (hwal_tpu.ahead), so that a crash of the compiler is a finding.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from hwal.errors import HwalError, UsageError, nearest
from hwal.record import Record, dataclass
from hwal_keras.step import train_step

TOPOLOGIES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
"""Generation -> the smallest part of a slice that libtpu describes; the step is compiled for one of its chips."""
WITHOUT_TPU = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
"""Variables by which libtpu describes chips that are not here, and asks no metadata server for them."""
LIMIT = 600.0  # seconds for the compilations of one step
SHOWN = 4000  # characters of what a compiler that died has said


@dataclass(frozen=True)
class Compiled(Record):
    """Bytes of a chip's memory that a compiled step takes, by what they are for. `error`: the compiler's sentence, where it
    refused; all bytes are 0 then."""

    generation: str
    arguments: int = 0
    outputs: int = 0
    aliased: int = 0
    temporaries: int = 0
    code: int = 0
    error: str | None = None

    @property
    def total(self) -> int:
        """What is in use at once: outputs that take the place of arguments count once."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


def rehearse(model: Any, element: Any, generation: str, limit: float = LIMIT) -> Compiled:
    """Compiles a compiled Keras model's train step for one chip.

    Args:
        element: the specs of a batch, as a dataset's element_spec gives them, every dimension known.
        generation: of TOPOLOGIES. limit: seconds.

    Raises UsageError for an unknown generation, HwalError where the compiler died or took too long.
    """
    if generation not in TOPOLOGIES:
        near = nearest(generation, TOPOLOGIES)
        raise UsageError(
            f"no compiler for TPU {generation}; there are {', '.join(TOPOLOGIES)}",
            hint=f"did you mean {near}?" if near else None,
        )
    return next(compiled(lower(model, element), (generation,), limit))


def lower(model: Any, element: Any) -> bytes:
    """The train step of a compiled model, as model.fit runs it: a serialized HloModuleProto, lowered from a batch's specs."""
    size = _size(element)
    specs = tf.nest.map_structure(lambda spec: keras.KerasTensor(tuple(spec.shape), spec.dtype.name), element)
    model._symbolic_build(data_batch=specs)
    step = train_step(model, tf.distribute.get_strategy(), static=True)
    return _lowered(lambda values: step((tf.constant(size), tf.constant(size), values))[0], element)


def lower_step(step: Callable[..., Any], element: Any) -> bytes:
    """The same of a loop of one's own: of `step(batch, size)` as rt.run takes it. Its model and optimizer have been built."""
    size = _size(element)
    return _lowered(lambda values: step(values, tf.constant(float(size))), element)


def _lowered(step: Callable[[Any], Any], element: Any) -> bytes:
    function = tf.function(lambda *values: step(tf.nest.pack_sequence_as(element, values)), jit_compile=True)
    lowered: bytes = function.experimental_get_compiler_ir(*tf.nest.flatten(element))(stage="hlo_serialized")
    return lowered


def _size(element: Any) -> int:
    """The rows of a batch. Raises UsageError where a shape is open."""
    leaves = tf.nest.flatten(element)
    if any(not leaf.shape.is_fully_defined() for leaf in leaves):
        raise UsageError(
            "a batch of unknown shape cannot be compiled", where=f"{element}", hint="dataset.batch(N, drop_remainder=True)"
        )
    return int(leaves[0].shape[0])


def compiled(lowered: bytes, generations: Iterable[str] = TOPOLOGIES, limit: float = LIMIT) -> Iterator[Compiled]:
    """What libtpu makes of a lowered step for each generation, by one process, which takes seconds to start.

    Raises HwalError, behind those that were done, where it died or took more than `limit` seconds.
    """
    wanted = list(generations)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.pb"
        path.write_bytes(lowered)
        pairs = [f"{generation}={TOPOLOGIES[generation]}" for generation in wanted]
        command = [sys.executable, "-m", "hwal_tpu.ahead", str(path), *pairs]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **WITHOUT_TPU}
        try:
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=limit, check=False)
            said, errors, code = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as late:
            said, errors, code = _text(late.stdout), _text(late.stderr), None
    finished = [line for line in said.splitlines() if line.startswith("{")]
    for line in finished:
        yield Compiled.from_json(line)
    if code == 0:
        return
    last = errors.strip()[-SHOWN:].splitlines()
    raise HwalError(
        f"the TPU's compiler took more than {limit:g} s"
        if code is None
        else f"the TPU's compiler ended with code {code}: {last[-1] if last else 'it said nothing'}",
        where=f"TPU {wanted[len(finished)] if len(finished) < len(wanted) else wanted[-1]}, {' '.join(command[1:3])}",
        hint="pip install 'hwal[rehearse-tpu]'" if "ModuleNotFoundError" in errors else None,
    )


def _text(output: bytes | str | None) -> str:
    """What a process that was ended had said: bytes, whatever was asked for."""
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
