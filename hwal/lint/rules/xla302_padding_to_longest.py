"""padding-to-longest

What: Padding each batch to its longest row: `padding=True`, `padding="longest"`, `padded_batch` without `padded_shapes`.

Why: Every new length is a new shape and a new compilation.

Bad:
    import torch_xla
    from transformers import DataCollatorWithPadding

    collate = DataCollatorWithPadding(None, padding=True)

Good:
    import torch_xla
    from transformers import DataCollatorWithPadding

    collate = DataCollatorWithPadding(None, padding=True, pad_to_multiple_of=64)

Fix safety: unsafe: rows are longer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.file import File, is_constant, keyword


def _check(file: File) -> Iterator[Finding]:
    if not (file.compiles or file.torch_xla):
        return
    for call, _ in file.source.calls:
        padding = keyword(call, "padding")
        longest = is_constant(padding, True) or (isinstance(padding, ast.Constant) and padding.value == "longest")
        if longest and keyword(call, "pad_to_multiple_of") is None:
            fix = Fix("unsafe", "rows are longer", (edits.add_keyword(file.source, call, "pad_to_multiple_of=64"),))
            yield Finding(
                call,
                "padding to the longest row of each batch: each length is a new shape and compiles again",
                "pad_to_multiple_of=64, or padding='max_length'",
                fix=fix,
            )
        elif (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "padded_batch"
            and keyword(call, "padded_shapes") is None
            and len(call.args) < 2
        ):
            yield Finding(
                call,
                "padded_batch pads to the longest row of each batch: each length compiles again",
                "padded_shapes=… of one size, or a few buckets",
            )


RULE = Rule("XLA302", "padding-to-longest", "warning", _check, __doc__, scope="module", fix="unsafe")
