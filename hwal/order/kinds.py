"""Kinds of devices: a run over several waits for the slowest, so it takes one, the fastest, unless told otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from hwal.topology import Device


def fastest(devices: Sequence[Device]) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """The devices of the fastest kind, in their order, and the names of the other kinds.

    Which is faster is told by the generation (what it computes natively, its architecture), then by memory.
    """
    kinds = list(dict.fromkeys(device.name for device in sorted(devices, key=_speed, reverse=True)))
    chosen = tuple(device for device in devices if device.name == kinds[0]) if kinds else ()
    return chosen, tuple(str(name) for name in kinds[1:])


def _speed(device: Device) -> tuple[int, int, str, int]:
    generation = device.arch or ""
    return len(device.native), len(generation), generation, device.memory_bytes or 0
