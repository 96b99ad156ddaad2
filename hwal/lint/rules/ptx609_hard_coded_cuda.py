"""hard-coded-cuda

What: `.cuda()`, `.to("cuda")`, `torch.device("cuda")`, `device="cuda"` in a program for torch_xla.

Why: There is no CUDA device beside a TPU.

Bad:
    import torch
    import torch_xla

    device = torch_xla.device()
    model = torch.nn.Linear(2, 2).cuda()

Good:
    import torch
    import torch_xla

    device = torch_xla.device()
    model = torch.nn.Linear(2, 2).to(device)

Fix safety: unsafe: it is another device.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.file import File, keyword


def _check(file: File) -> Iterator[Finding]:
    if not file.source.uses("torch_xla"):
        return
    for node, fix in hard_coded(file):
        yield Finding(node, "a CUDA device in a program for torch_xla", "torch_xla.device(), or hwal's rt.device", fix=fix)


def hard_coded(file: File) -> Iterator[tuple[ast.AST, Fix | None]]:
    """The places that name CUDA, each with a fix where the file has a name `device`."""
    source = file.source
    known = "device" in source.globals or any(p.arg == "device" for f in source.functions for p in f.parameters)
    for call, _ in source.calls:
        if file.elsewhere(call):
            continue
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr == "cuda" and not source.names.resolve(func):
            new = f"{edits.text(source, func.value)}.to(device)"
            yield call, Fix("unsafe", "the device of the run", (edits.replace(source, call, new),)) if known else None
            continue
        name = source.names.resolve(func) or ""
        given = [keyword(call, "device")]
        if name == "torch.device" or (isinstance(func, ast.Attribute) and func.attr == "to"):
            given += call.args[:1]
        for value in given:
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.partition(":")[0] == "cuda":
                fix = (
                    Fix("unsafe", "the device of the run", (edits.replace(source, value, "device"),))
                    if known and name != "torch.device"
                    else None
                )
                yield value, fix


RULE = Rule("PTX609", "hard-coded-cuda", "error", _check, __doc__, scope="module", fix="unsafe")
