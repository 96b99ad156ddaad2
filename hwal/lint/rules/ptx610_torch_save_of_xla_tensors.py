"""torch-save-of-xla-tensors

What: `torch.save` of a state dict that is on an XLA device.

Why: The file remembers the device, and cannot be read where there is none; several processes write over each other.

Bad:
    import torch
    import torch_xla

    model = torch.nn.Linear(2, 2).to(torch_xla.device())
    torch.save(model.state_dict(), "model.pt")

Good:
    import torch
    import torch_xla.core.xla_model as xm

    model = torch.nn.Linear(2, 2).to(xm.xla_device())
    xm.save(model.state_dict(), "model.pt")
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File


def _check(file: File) -> Iterator[Finding]:
    if not file.source.uses("torch_xla"):
        return
    for name, call, _ in file.named_calls:
        if name == "torch.save" and call.args and not file.elsewhere(call):
            saved = ast.unparse(call.args[0])
            if "state_dict" in saved and "cpu" not in saved and not HOST.search(saved):
                yield Finding(
                    call,
                    "torch.save of tensors on an XLA device: the file remembers the device",
                    "xm.save, or move them with .cpu() first",
                )


HOST = re.compile(r"sched|loader|sampler")
"""Things with a state_dict that holds no tensors of a device."""


RULE = Rule("PTX610", "torch-save-of-xla-tensors", "warning", _check, __doc__, scope="module")
