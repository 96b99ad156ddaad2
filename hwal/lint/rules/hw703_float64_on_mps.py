"""float64-on-mps

What: float64 in a training script.

Why: Apple's GPUs have no float64, and a TPU emulates it.

Bad:
    import torch

    model = torch.nn.Linear(2, 2)
    for x in [torch.ones(2)]:
        model(x).sum().backward()
    model.double()

Good:
    import torch

    model = torch.nn.Linear(2, 2)
    for x in [torch.ones(2)]:
        model(x).sum().backward()
    model.float()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File, keyword


def _check(file: File) -> Iterator[Finding]:
    if not file.portable_torch:
        return
    for call, _ in file.source.calls:
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "double"
            and not call.args
            and not file.source.names.resolve(call.func)
        ):
            yield Finding(call, "float64, which Apple's GPUs have not", "float32")
        elif (
            file.source.names.resolve(call.func) == "torch.set_default_dtype"
            and call.args
            and "float64" in ast.unparse(call.args[0])
        ):
            yield Finding(call, "float64 for everything, which Apple's GPUs have not", "float32")
        dtype = keyword(call, "dtype")
        if dtype is not None and file.source.names.resolve(dtype) in ("torch.float64", "torch.double"):
            yield Finding(dtype, "float64, which Apple's GPUs have not", "torch.float32")


RULE = Rule("HW703", "float64-on-mps", "warning", _check, __doc__, scope="module")
