"""A TPU Node: a TPU of another machine, which TensorFlow reaches by gRPC, and what its data must be.

It reads its data itself: no file of this machine is there, and no Python.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hwal.errors import ScriptError

PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})  # from_generator, py_function, numpy_function
READERS = frozenset({
    "TFRecordDataset", "TFRecordDatasetV2", "TextLineDataset", "FixedLengthRecordDataset", "FixedLengthRecordDatasetV2",
    "CSVDataset", "CSVDatasetV2", "ReadFile", "MatchingFiles", "MatchingFilesDataset",
})  # fmt: skip
REMOTE = "gs://"


def check_data(data: Any, address: str) -> None:
    """Raises ScriptError for a dataset that the Node at `address` cannot read: one that calls Python, or local files."""
    operations, texts = contents(data)
    if called := sorted(operations & PYTHON):
        raise ScriptError(
            f"the dataset calls Python ({called[0]}: from_generator, py_function or a Hugging Face to_tf_dataset)",
            where="rt.feed",
            why=f"the TPU Node at {address} reads its data itself, and has no Python of this script's",
            hint=f"TFRecord files on {REMOTE}…, or arrays in memory: tf.data.Dataset.from_tensor_slices((x, y))",
        )
    local = next((text for text in texts if _is_path(text)), None)
    if operations & READERS and local is not None:
        raise ScriptError(
            f"the dataset reads {local:.80}, a file of this machine",
            where="rt.feed",
            why=f"the TPU Node at {address} is another machine: it reads its data itself, from {REMOTE} only",
            hint=f"gsutil cp {local:.80} {REMOTE}BUCKET/, and that name in the script; or arrays in memory",
        )


def contents(data: Any) -> tuple[set[str], list[str]]:
    """The names of a dataset's operations, those of its functions among them, and the texts that it was given."""
    graph = tf.compat.v1.GraphDef()
    variant = tf.data.experimental.to_variant(data)
    serialized = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1)  # 1: state is ignored
    graph.ParseFromString(serialized.numpy())
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    constants = [node.attr["value"].tensor for node in nodes if node.op == "Const"]
    texts = [text.decode(errors="replace") for tensor in constants for text in tensor.string_val]
    return {node.op for node in nodes}, texts


def _is_path(text: str) -> bool:
    return "://" not in text and ("/" in text or text.endswith((".tfrecord", ".tfrecords", ".txt", ".csv")))
