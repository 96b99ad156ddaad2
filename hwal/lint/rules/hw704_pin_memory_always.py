"""pin-memory-always

What: `pin_memory=True` whatever the device.

Why: Pinned memory speeds up copies to NVIDIA's and AMD's GPUs; elsewhere it is wasted, and torch warns.

Bad:
    import torch

    model = torch.nn.Linear(2, 2)
    for x in [torch.ones(2)]:
        model(x).sum().backward()
    loader = torch.utils.data.DataLoader([1], pin_memory=True)

Good:
    import torch

    model = torch.nn.Linear(2, 2)
    for x in [torch.ones(2)]:
        model(x).sum().backward()
    loader = torch.utils.data.DataLoader([1], pin_memory=x.device.type == "cuda")
"""

from __future__ import annotations

from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File, is_constant, keyword


def _check(file: File) -> Iterator[Finding]:
    if not file.portable_torch:
        return
    for name, call, _ in file.named_calls:
        if name.endswith("DataLoader") and is_constant(pin := keyword(call, "pin_memory"), True) and pin is not None:
            yield Finding(pin, "pinned memory whatever the device", 'pin_memory=device.type == "cuda", or hwal\'s rt.feed')


RULE = Rule("HW704", "pin-memory-always", "info", _check, __doc__, scope="module")
