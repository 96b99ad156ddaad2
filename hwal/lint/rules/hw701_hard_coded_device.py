"""hard-coded-device

What: `.cuda()`, `.to("cuda")`, `torch.device("cuda")` in a training script.

Why: The script runs on one make of hardware only.

Bad:
    import torch

    model = torch.nn.Linear(2, 2)
    for x in [torch.ones(2)]:
        model(x).sum().backward()
    model.cuda()

Good:
    import torch

    model = torch.nn.Linear(2, 2)
    for x in [torch.ones(2)]:
        model(x).sum().backward()
    device = torch.accelerator.current_accelerator()
    model.to(device)

Fix safety: unsafe: it is another device.
"""

from __future__ import annotations

from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File
from hwal.lint.rules.ptx609_hard_coded_cuda import hard_coded


def _check(file: File) -> Iterator[Finding]:
    if not file.portable_torch or file.source.uses("torch_xla"):
        return
    for node, fix in hard_coded(file):
        yield Finding(
            node,
            "a device written into the script: it runs on NVIDIA's hardware only",
            "hwal's rt.device, or torch.accelerator.current_accelerator()",
            fix=fix,
        )


RULE = Rule("HW701", "hard-coded-device", "warning", _check, __doc__, scope="module")
