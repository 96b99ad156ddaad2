"""host-generator-on-tpu-node

What: `Dataset.from_generator`, `py_function`, `to_tf_dataset`, `prepare_tf_dataset` in a program whose TPU is reached over
    the network.

Why: The TPU's own host runs the input pipeline; Python code of this machine cannot run there.

Bad:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="node-1")
    strategy = tf.distribute.TPUStrategy(resolver)
    data = tf.data.Dataset.from_generator(lambda: range(8), tf.int32)

Good:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    strategy = tf.distribute.TPUStrategy(resolver)
    data = tf.data.Dataset.from_generator(lambda: range(8), tf.int32)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule, tpu_error
from hwal.lint.file import File


def _check(file: File) -> Iterator[Finding]:
    if not file.on_tpu or not file.on_tpu_node:
        return
    for call, _ in file.source.calls:
        name = file.source.names.resolve(call.func) or ""
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        python = name in ("tensorflow.py_function", "tensorflow.numpy_function", "tensorflow.data.Dataset.from_generator")
        if python or method in ("to_tf_dataset", "prepare_tf_dataset", "from_generator"):
            yield Finding(
                call,
                "Python code in an input pipeline that another machine runs",
                "TFRecord files on gs://, or a TPU VM with tpu='local'",
            )


RULE = Rule("TPU503", "host-generator-on-tpu-node", tpu_error("info"), _check, __doc__, scope="module")
