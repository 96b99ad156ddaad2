"""Sharded tensors: this rank's part of one, all of it, and how to make one. What is torch's own here is in this file alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from hwal.errors import CheckpointError


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the parts of all ranks, each of which must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def settled(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, unless each rank holds a summand of it: then its sum. Every rank calls it."""
    if not isinstance(tensor, DTensor) or not any(placement.is_partial() for placement in tensor.placements):
        return tensor
    return tensor.redistribute(placements=[Replicate() if p.is_partial() else p for p in tensor.placements])


def rows_of(tensor: torch.Tensor, name: str) -> tuple[torch.Tensor, int]:
    """The rows of a tensor that this rank holds, and the number of the first: (rows, first).

    Raises CheckpointError where it is cut along another dimension than its first.
    """
    if not isinstance(tensor, DTensor):
        return tensor, 0
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(sizes[1:]) != tuple(tensor.shape[1:]):
        raise CheckpointError("it is cut along another dimension than its first", where=name)
    return tensor.to_local(), offsets[0] if offsets else 0


def part_of(shape: Sequence[int], beside: DTensor) -> tuple[tuple[int, ...], int, tuple[Placement, ...]]:
    """How a tensor of that shape is laid beside a parameter: cut likewise if it has as many rows, else whole on every rank.

    Returns the shape of this rank's part, the number of its first row, and the placements.
    """
    mesh = beside.device_mesh
    cut: Any = beside.placements if shape[0] == beside.shape[0] else (Replicate(),) * mesh.ndim
    sizes, offsets = compute_local_shape_and_global_offset(tuple(shape), mesh, cut)
    return tuple(sizes), offsets[0], tuple(cut)


def scale(tensors: Sequence[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiplies this rank's parts by a number, in place; under +offload they lie in the host's memory, the number does not."""
    parts: dict[torch.device, list[torch.Tensor]] = {}
    for tensor in map(local, tensors):
        if tensor.is_sparse:
            tensor.mul_(factor)
        else:
            parts.setdefault(tensor.device, []).append(tensor)
    for device, those in parts.items():
        torch._foreach_mul_(those, factor.to(device))


def sharded(rows: torch.Tensor, shape: Sequence[int], mesh: DeviceMesh, cut: Sequence[Placement]) -> DTensor:
    """The sharded tensor of that shape of which this rank holds `rows`, wherever they are: DTensor.from_local would move them
    to the mesh's device, also where they were offloaded from there."""
    like = torch.empty(tuple(shape), dtype=rows.dtype, device="meta")
    spec = DTensorSpec(mesh, tuple(cut), TensorMeta(like.shape, like.stride(), like.dtype))
    return DTensor(rows, spec, requires_grad=False)
