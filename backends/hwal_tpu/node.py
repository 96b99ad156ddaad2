"""A TPU Node: a TPU of another machine, which TensorFlow reaches by gRPC, and what its data must be.

It reads its data itself: no file of this machine is there, and no Python.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hwal.errors import ScriptError
from hwal_tpu.names import file_names

PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})  # from_generator, py_function, numpy_function
REMOTE = "gs://"


def check_data(data: Any, address: str) -> None:
    """Raises ScriptError for a dataset that the Node at `address` cannot read: one that calls Python, or local files."""
    graph = graph_of(data)
    operations = {node.op for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes}
    if called := sorted(operations & PYTHON):
        raise ScriptError(
            f"the dataset calls Python ({called[0]}: from_generator, py_function or a Hugging Face to_tf_dataset)",
            where="rt.feed",
            why=f"the TPU Node at {address} reads its data itself, and has no Python of this script's",
            hint=f"TFRecord files on {REMOTE}…, or arrays in memory: tf.data.Dataset.from_tensor_slices((x, y))",
        )
    local = next((name for name in file_names(graph) if name and not name.startswith(REMOTE)), None)
    if local is not None:
        raise ScriptError(
            f"the dataset reads {local:.80}, a file of this machine",
            where="rt.feed",
            why=f"the TPU Node at {address} is another machine: it reads its data itself, from {REMOTE} only",
            hint=f"gsutil cp {local:.80} {REMOTE}BUCKET/, and that name in the script; or arrays in memory",
        )


def graph_of(data: Any) -> Any:
    """A dataset as TensorFlow's GraphDef."""
    graph = tf.compat.v1.GraphDef()
    variant = tf.data.experimental.to_variant(data)
    serialized = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1)  # 1: state is ignored
    graph.ParseFromString(serialized.numpy())
    return graph
