"""local-path-on-tpu-node

What: A path of this machine, in a program whose TPU is reached over the network.

Why: The TPU's own host reads the files; it sees Cloud Storage and not this machine: "File system scheme '[local]' not
    implemented".

Bad:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="node-1")
    strategy = tf.distribute.TPUStrategy(resolver)
    data = tf.data.TFRecordDataset("/data/train.tfrecord")

Good:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="node-1")
    strategy = tf.distribute.TPUStrategy(resolver)
    data = tf.data.TFRecordDataset("gs://bucket/train.tfrecord")
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule, tpu_error
from hwal.lint.file import File

READERS = (
    "tensorflow.data.TFRecordDataset", "tensorflow.data.TextLineDataset", "tensorflow.data.FixedLengthRecordDataset",
    "tensorflow.data.Dataset.list_files", "tensorflow.io.read_file", "keras.callbacks.ModelCheckpoint",
    "keras.callbacks.TensorBoard", "keras.utils.image_dataset_from_directory", "tensorflow.train.Checkpoint",
)  # fmt: skip


def _check(file: File) -> Iterator[Finding]:
    if not file.on_tpu or not file.on_tpu_node:
        return
    for name, call, _ in file.named_calls:
        if name in READERS and call.args:
            first = call.args[0]
            for part in first.elts if isinstance(first, ast.List | ast.Tuple) else [first]:
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and "://" not in part.value:
                    yield Finding(
                        part,
                        "a path of this machine: the TPU's host reads it, and does not see it",
                        "gs://…, or a TPU VM with tpu='local'",
                    )


RULE = Rule("TPU502", "local-path-on-tpu-node", tpu_error("info"), _check, __doc__, scope="module")
