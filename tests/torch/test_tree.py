"""Trees of plain values and tensors, as JSON beside tensors."""

from __future__ import annotations

import json
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from hwal_torch import tree

KEYS = st.one_of(st.integers(0, 3), st.sampled_from(["0", "1", "a", "a/b", "$a", "'"]))
LEAVES = st.one_of(st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False), st.text(max_size=3), st.just("tensor"))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=12,
)


def planted(value: Any, count: list[int]) -> Any:
    """The same tree with a tensor of its own, numbered, wherever it says "tensor"."""
    if value == "tensor":
        count[0] += 1
        return torch.tensor([float(count[0])])
    if isinstance(value, dict):
        return {key: planted(item, count) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(planted(item, count) for item in value)
    return value


def plain(value: Any) -> Any:
    """The tree with numbers for its tensors, which can be compared."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.item())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    return value


@given(TREES)
def test_a_tree_comes_back_with_every_tensor_in_its_place(shape: Any) -> None:
    count = [0]
    value = planted(shape, count)
    tensors: dict[str, torch.Tensor] = {}
    document = json.loads(json.dumps(tree.encode(value, tensors, "")))
    assert len(tensors) == count[0]
    assert plain(tree.decode(document, tensors.__getitem__)) == plain(value)
