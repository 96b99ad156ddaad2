"""clip-grad-error-if-nonfinite

What: `clip_grad_norm_(…, error_if_nonfinite=True)`.

Why: It reads the norm on the host in each step: the graph is cut, run, and waited for.

Bad:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)

Good:
    import torch
    import torch_xla

    def train(model, loader, optimizer):
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""

from __future__ import annotations

from collections.abc import Iterator

from hwal.lint.diagnostic import Finding, Rule
from hwal.lint.file import File, is_constant, keyword


def _check(file: File) -> Iterator[Finding]:
    if not file.torch_xla:
        return
    for name, call, _ in file.named_calls:
        if name.endswith("clip_grad_norm_") and is_constant(keyword(call, "error_if_nonfinite"), True):
            yield Finding(
                call,
                "error_if_nonfinite reads the norm on the host in each step",
                "leave it out, and look at the loss every so many steps",
            )


RULE = Rule("PTX612", "clip-grad-error-if-nonfinite", "warning", _check, __doc__, scope="module")
