"""op-without-lowering

What: A function that torch_xla does not lower.

Why: It runs on the host: the graph is cut, values travel to the CPU and back in each step.

Bad:
    import torch
    import torch_xla

    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x)

Good:
    import torch
    import torch_xla

    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.eigvalsh(x)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File


def _check(file: File) -> Iterator[Finding]:
    for node, _ in file.step_nodes(ast.Call):
        if isinstance(node, ast.Call) and (file.source.names.resolve(node.func) or "") in UNLOWERED:
            yield Finding(
                node,
                f"{ast.unparse(node.func)} has no lowering in torch_xla: it runs on the host",
                "another formula, or do it outside the step",
            )


UNLOWERED = (
    "torch.linalg.eig", "torch.linalg.eigvals", "torch.linalg.lstsq", "torch.histc", "torch.histogram",
    "torch.nn.functional.ctc_loss", "torch.nn.functional.fractional_max_pool2d", "torch.linalg.matrix_exp", "torch.lu",
    "torch.linalg.lu",
)  # fmt: skip


RULE = Rule("PTX606", "op-without-lowering", "info", _check, __doc__, scope="module")
