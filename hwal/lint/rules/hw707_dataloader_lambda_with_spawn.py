"""dataloader-lambda-with-spawn

What: A lambda or a local function in a `DataLoader` with worker processes.

Why: Where processes are spawned (macOS, Windows, XLA), it must be pickled, and a lambda cannot be.

Bad:
    import torch

    loader = torch.utils.data.DataLoader([1], num_workers=2, collate_fn=lambda rows: rows)

Good:
    import torch

    def collate(rows):
        return rows

    loader = torch.utils.data.DataLoader([1], num_workers=2, collate_fn=collate)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File, is_constant, keyword


def _check(file: File) -> Iterator[Finding]:
    if not file.source.uses("torch"):
        return
    for name, call, _ in file.named_calls:
        workers = keyword(call, "num_workers")
        if name.endswith("DataLoader") and workers is not None and not is_constant(workers, 0):
            for argument in ("collate_fn", "worker_init_fn"):
                if isinstance(value := keyword(call, argument), ast.Lambda):
                    yield Finding(
                        value,
                        f"{argument} is a lambda, which spawned workers cannot be given",
                        "a function at the top of the file",
                    )


RULE = Rule("HW707", "dataloader-lambda-with-spawn", "warning", _check, __doc__, scope="module")
