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
from hwal.lint.file import File, keyword


def _check(file: File) -> Iterator[Finding]:
    for node, _ in file.step_nodes(ast.Call):
        name = (file.source.names.resolve(node.func) or "") if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and (name in UNLOWERED or name.startswith("torch.fft.") or _bicubic(name, node)):
            yield Finding(
                node,
                f"{ast.unparse(node.func)} has no lowering in torch_xla: it runs on the host",
                "another formula, or do it outside the step",
            )


def _bicubic(name: str, call: ast.Call) -> bool:
    mode = keyword(call, "mode")
    return name == "torch.nn.functional.interpolate" and isinstance(mode, ast.Constant) and mode.value == "bicubic"


UNLOWERED = frozenset(
    {
        "torch.linalg.eig", "torch.linalg.eigvals", "torch.linalg.lstsq", "torch.linalg.matrix_exp", "torch.linalg.lu",
        "torch.linalg.qr", "torch.linalg.det", "torch.linalg.inv", "torch.linalg.cholesky", "torch.linalg.solve",
        "torch.linalg.cross", "torch.lu", "torch.qr", "torch.det", "torch.inverse", "torch.cholesky", "torch.cross",
        "torch.histc", "torch.histogram", "torch.median", "torch.multinomial", "torch.lgamma", "torch.digamma",
        "torch.searchsorted", "torch.bucketize", "torch.logcumsumexp", "torch.nn.functional.ctc_loss",
        "torch.nn.functional.fractional_max_pool2d", "torch.nn.functional.grid_sample", "torch.nn.functional.unfold",
        "torch.nn.functional.fold", "torch.nn.functional.huber_loss", "torch.nn.functional.rrelu",
        "torch.nn.functional.embedding_bag", "torch.nn.functional.multi_margin_loss",
        "torch.nn.functional.multilabel_margin_loss", "torch.i0", "torch.special.i0", "torch.special.ndtri", "torch.poisson",
        "torch.hypot", "torch.nanmean", "torch.nansum", "torch.nanmedian", "torch.mode", "torch.cummin", "torch.renorm",
        "torch.polygamma", "torch.special.polygamma",
}
)  # fmt: skip
"""Counted as `aten::` fallbacks, one a step, with torch_xla 2.8."""


RULE = Rule("PTX606", "op-without-lowering", "info", _check, __doc__, scope="module")
