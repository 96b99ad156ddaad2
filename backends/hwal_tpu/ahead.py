"""A lowered step compiled by libtpu, ahead of time: a program of its own, which prints a line of JSON for each generation
(rehearse.Compiled) as soon as that is done.

    python -m hwal_tpu.ahead STEP.pb v5e=v5e:2x2 v6e=v6e:2x2

jax's way to the compiler is not public. All of it that is touched is here: tried with jax and jaxlib 0.10.2, libtpu 0.0.42.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import _jax, xla_client
from jax.experimental import topologies
from jaxlib.mlir import ir

COPY = "mhlo.copy"  # left by TensorFlow; StableHLO has none, and it changes nothing


def main(argv: Sequence[str]) -> int:
    path, *wanted = argv
    step = Path(path).read_bytes()
    for generation, topology in (pair.split("=") for pair in wanted):
        print(json.dumps({"generation": generation, **made(step, topology)}), flush=True)
    return 0


def made(step: bytes, topology: str) -> dict[str, Any]:
    """What rehearse.Compiled holds besides the generation: bytes of one chip's memory, or the compiler's error."""
    device = topologies.get_topology_desc(topology, "tpu").devices[0]
    with mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(step))
        drop_copies(module)
        options = compiler.get_compile_options(1, 1, device_assignment=numpy.array([[device.id]]))
        try:
            done = device.client.compile(module, xla_client.DeviceList((device,)), options)
        except _jax.JaxRuntimeError as error:
            return {"error": str(error).strip().splitlines()[0]}
    stats = done.get_compiled_memory_stats()
    return {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
    }


def drop_copies(module: Any) -> None:
    """Puts in the place of each copy what it copies."""
    for operation in list(_operations(module.operation)):
        if operation.name == COPY:
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()


def _operations(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from _operations(inner.operation)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
