"""variable-batch

What: A `DataLoader` without `drop_last=True`.

Why: The last batch is smaller: another shape, and another compilation of everything.

Bad:
    import torch_xla
    from torch.utils.data import DataLoader

    loader = DataLoader([1, 2, 3], batch_size=2)

Good:
    import torch_xla
    from torch.utils.data import DataLoader

    loader = DataLoader([1, 2, 3], batch_size=2, drop_last=True)

Fix safety: unsafe: the rows of the last batch are not seen.
"""

from __future__ import annotations

from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.file import File, is_constant, keyword


def _check(file: File) -> Iterator[Finding]:
    if not file.source.uses("torch_xla"):
        return
    for name, call, _ in file.named_calls:
        if (
            name in ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
            and keyword(call, "batch_sampler") is None
        ):
            size = keyword(call, "batch_size") or (call.args[1] if len(call.args) > 1 else None)
            if size is not None and not is_constant(size, 1) and keyword(call, "drop_last") is None and len(call.args) < 9:
                fix = Fix("unsafe", "the last rows are not seen", (edits.add_keyword(file.source, call, "drop_last=True"),))
                yield Finding(
                    call, "the last batch is smaller: another shape, and another compilation", "drop_last=True", fix=fix
                )


RULE = Rule("PTX604", "variable-batch", "warning", _check, __doc__, scope="module", fix="unsafe")
