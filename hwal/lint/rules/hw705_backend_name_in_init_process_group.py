"""backend-name-in-init-process-group

What: A backend's name in `init_process_group`.

Why: `nccl` is there with NVIDIA and AMD only, `gloo` is slow on them. torch chooses by device where none is given.

Bad:
    import torch

    model = torch.nn.Linear(2, 2)
    for x in [torch.ones(2)]:
        model(x).sum().backward()
    torch.distributed.init_process_group("nccl")

Good:
    import torch

    model = torch.nn.Linear(2, 2)
    for x in [torch.ones(2)]:
        model(x).sum().backward()
    torch.distributed.init_process_group()

Fix safety: unsafe: torch may choose another.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.file import File, keyword


def _check(file: File) -> Iterator[Finding]:
    if not file.source.uses("torch"):
        return
    for name, call, _ in file.named_calls:
        if name == "torch.distributed.init_process_group":
            backend = call.args[0] if call.args else keyword(call, "backend")
            if isinstance(backend, ast.Constant) and backend.value in ("nccl", "gloo", "mpi", "ccl", "xccl"):
                yield Finding(
                    backend,
                    f"{backend.value!r} is not there, or not fast, on all hardware",
                    "leave it out, or let hwal start the processes",
                    fix=_fix(file, call, backend),
                )


def _fix(file: File, call: ast.Call, backend: ast.Constant) -> Fix | None:
    if keyword(call, "backend") is not None:
        edit = edits.remove_keyword(file.source, call, "backend")
    else:
        edit = edits.replace(file.source, backend, "None")
    return Fix("unsafe", "torch chooses", (edit,)) if edit else None


RULE = Rule("HW705", "backend-name-in-init-process-group", "warning", _check, __doc__, scope="module", fix="unsafe")
