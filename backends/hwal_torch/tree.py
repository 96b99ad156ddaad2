"""State dicts as JSON beside tensors: nothing is pickled.

A tree of dicts, lists, tuples, numbers, strings, None and tensors becomes plain JSON in which each tensor is a reference
into a table. What JSON lacks is tagged: {"$tensor": key}, {"$tuple": […]}, {"$map": [[key, value], …]} for keys that are
not strings, {"$counter": …}, {"$float": "inf"}.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from hwal.errors import CheckpointError


def encode(value: Any, tensors: dict[str, torch.Tensor], path: str) -> Any:
    """JSON for `value`; its tensors go into `tensors` under their path. Raises CheckpointError for what would need pickle."""
    if isinstance(value, torch.Tensor):
        while path in tensors:  # {1: …, "1": …} and {"a/b": …, "a": {"b": …}} come to the same path
            path += "'"
        tensors[path] = value.detach()
        return {"$tensor": path}
    if isinstance(value, bool | str | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, Mapping):
        items = [[key, encode(item, tensors, f"{path}/{key}")] for key, item in value.items()]
        if isinstance(value, Counter):
            return {"$counter": items}
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return dict(items)
        if all(isinstance(key, int | str) for key in value):
            return {"$map": items}
    if isinstance(value, list | tuple):
        items = [encode(item, tensors, f"{path}/{i}") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a NumPy scalar
        return encode(value.item(), tensors, path)
    raise CheckpointError(
        f"a {type(value).__name__} cannot be saved: a checkpoint holds numbers, text, lists, dicts and tensors, no pickles",
        where=path,
        hint="keep it out of state_dict(), or rebuild it from the script",
    )


def decode(value: Any, read: Callable[[str], Any]) -> Any:
    """What encode was given, with what `read` makes of a tensor's path in the place of each tensor; ordered and default
    dicts come back as plain ones."""
    if isinstance(value, list):
        return [decode(item, read) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, body),) = value.items()
        if tag == "$tensor":
            return read(body)
        if tag == "$float":
            return float(body)
        if tag == "$tuple":
            return tuple(decode(item, read) for item in body)
        if tag in ("$map", "$counter"):
            pairs = {key: decode(item, read) for key, item in body}
            return Counter(pairs) if tag == "$counter" else pairs
    return {key: decode(item, read) for key, item in value.items()}
