"""Rows lengthened to a multiple, so that a compiler meets few shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from hwal.errors import ScriptError


def pad(batch: Any, values: Mapping[str, int], multiple: int) -> Any:
    """A batch that is a mapping, with the tensors named in `values` lengthened in their second dimension, by their value;
    those of one dimension stay as they are. Raises ScriptError for a batch that has no such names.
    """
    missing = [name for name in values if name not in batch] if isinstance(batch, Mapping) else list(values)
    if missing:
        raise ScriptError(
            f"rt.feed(pad=…) names {', '.join(missing)}, and the batch has no such entry",
            why=f"it is a {type(batch).__name__}" + (f" of {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else ""),
            hint="pad={name in the batch: value}, for batches that are dicts; else pad in the collate function",
        )
    longer = {name: _lengthened(batch[name], value, multiple) for name, value in values.items()}
    return {**batch, **longer} if type(batch) is dict else type(batch)({**batch, **longer})


def _lengthened(tensor: torch.Tensor, value: int, multiple: int) -> torch.Tensor:
    if tensor.dim() < 2 or not (missing := -tensor.shape[1] % multiple):
        return tensor
    return functional.pad(tensor, [0] * (2 * (tensor.dim() - 2)) + [0, missing], value=value)
