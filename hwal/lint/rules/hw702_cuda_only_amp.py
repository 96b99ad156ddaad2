"""cuda-only-amp

What: `torch.cuda.amp`, `autocast("cuda")`, `GradScaler()` without a device.

Why: They do nothing, or fail, on other hardware; a scaler is for float16 only, bfloat16 needs none.

Bad:
    import torch

    model = torch.nn.Linear(2, 2)
    for x in [torch.ones(2)]:
        model(x).sum().backward()
    scaler = torch.cuda.amp.GradScaler()

Good:
    import torch

    model = torch.nn.Linear(2, 2)
    for x in [torch.ones(2)]:
        model(x).sum().backward()
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        model(x)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File, keyword


def _check(file: File) -> Iterator[Finding]:
    if not file.portable_torch:
        return
    for name, call, _ in file.named_calls:
        if file.elsewhere(call):
            continue
        first = call.args[0] if call.args else keyword(call, "device_type") or keyword(call, "device")
        cuda = isinstance(first, ast.Constant) and first.value == "cuda"
        if (
            name.startswith("torch.cuda.amp.")
            or (name in ("torch.autocast", "torch.amp.autocast") and cuda)
            or (name == "torch.amp.GradScaler" and (first is None or cuda))
        ):
            yield Finding(
                call,
                "mixed precision for NVIDIA's hardware only",
                "torch.autocast(device.type, dtype=torch.bfloat16), or hwal's rt.autocast()",
            )


RULE = Rule("HW702", "cuda-only-amp", "warning", _check, __doc__, scope="module")
