"""env-set-after-import

What: An environment variable that torch reads when it is imported, set after the import.

Why: It has no effect: `PYTORCH_ENABLE_MPS_FALLBACK` and its like are read once.

Bad:
    import os
    import torch

    os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"

Good:
    import os

    os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"

    import torch
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File

READ_AT_IMPORT = (
    "PYTORCH_ENABLE_MPS_FALLBACK",
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO",
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PJRT_DEVICE",
    "TF_CPP_MIN_LOG_LEVEL",
    "XLA_FLAGS",
    "KERAS_BACKEND",
    "OMP_NUM_THREADS",
)
READERS = {
    "PJRT_DEVICE": ("torch_xla",),
    "TF_CPP_MIN_LOG_LEVEL": ("tensorflow",),
    "XLA_FLAGS": ("tensorflow", "torch_xla"),
    "KERAS_BACKEND": ("keras",),
}


def _check(file: File) -> Iterator[Finding]:
    imported: dict[str, int] = {}
    for node in file.source.tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported.setdefault(alias.name.partition(".")[0], node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.setdefault(node.module.partition(".")[0], node.lineno)
    for node in file.source.tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if (
            isinstance(target, ast.Subscript)
            and file.source.names.resolve(target.value) == "os.environ"
            and isinstance(target.slice, ast.Constant)
        ):
            name = target.slice.value
            if name in READ_AT_IMPORT:
                for package in READERS.get(str(name), ("torch",)):
                    if imported.get(package, node.lineno) < node.lineno:
                        yield Finding(
                            node,
                            f"{name} is set after {package} was imported, which reads it once",
                            "set it first, or in the shell",
                        )
                        break


RULE = Rule("HW706", "env-set-after-import", "warning", _check, __doc__, scope="module")
