"""Rows lengthened to a multiple, so that a compiler meets few shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from hwal.errors import ScriptError


def pad(batch: Any, values: Mapping[Any, int], multiple: int | None) -> Any:
    """A batch with some of its tensors lengthened in their second dimension, by the value that stands in `values` under their
    name in a mapping, or under their place in a tuple or list; those of one dimension stay as they are. Without a multiple
    all do, and are looked at all the same: a script that is wrong is so on every device.

    Raises ScriptError for a batch that has no such names or places, or no tensor there.
    """
    named = isinstance(batch, Mapping)
    there = list(batch) if named else list(range(len(batch))) if isinstance(batch, tuple | list) else []
    if missing := [key for key in values if key not in there]:
        raise ScriptError(
            f"rt.feed(pad=…) names {', '.join(map(str, missing))}, and the batch has no such entry",
            why=f"it is a {type(batch).__name__}" + (f" of {', '.join(map(str, there))}" if there else ""),
            hint="pad={name or place in the batch: value}; else pad in the collate function",
        )
    for key in values:
        if not isinstance(batch[key], torch.Tensor):
            raise ScriptError(
                f"rt.feed(pad=…) names {key}, and the batch has a {type(batch[key]).__name__} there",
                why="a tensor can be lengthened",
                hint="leave it out of pad, or have the collate function make a tensor of it",
            )
    if multiple is None:
        return batch
    longer = {key: _lengthened(batch[key], value, multiple) for key, value in values.items()}
    if named:
        return {**batch, **longer} if type(batch) is dict else type(batch)({**batch, **longer})
    items = [longer.get(place, item) for place, item in enumerate(batch)]
    return batch._make(items) if hasattr(batch, "_make") else type(batch)(items)


def _lengthened(tensor: torch.Tensor, value: int, multiple: int) -> torch.Tensor:
    if tensor.dim() < 2 or not (missing := -tensor.shape[1] % multiple):
        return tensor
    return functional.pad(tensor, [0] * (2 * (tensor.dim() - 2)) + [0, missing], value=value)
