"""tpu-node-is-legacy

What: A TPU that is reached over the network (a TPU Node).

Why: TPU Nodes are a thing of the past: a TPU VM runs the program beside the chips, reads local files and runs Python in the
    input pipeline.

Bad:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="grpc://10.0.0.2:8470")

Good:
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File, keyword


def _check(file: File) -> Iterator[Finding]:
    for name, call, _ in file.named_calls:
        if name.startswith("tensorflow.") and name.endswith("TPUClusterResolver"):
            first = call.args[0] if call.args else keyword(call, "tpu")
            if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value not in ("local", ""):
                yield Finding(call, "a TPU Node, which is a thing of the past", "a TPU VM: TPUClusterResolver(tpu='local')")


RULE = Rule("TPU506", "tpu-node-is-legacy", "info", _check, __doc__, scope="module")
