"""Kinds of devices: a run over several waits for the slowest, so it takes one, the fastest, unless told otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from hwal.topology import Device


def fastest(devices: Sequence[Device]) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """The devices of the fastest kind, in their order, and the names of the other kinds.

    Which is faster is told by their peaks where all are known; else by the generation (what it computes natively, its
    architecture), then by memory.
    """
    known = all(device.flops is not None for device in devices)
    ranked = sorted(devices, key=lambda device: ((device.flops or 0.0) if known else 0.0, *_speed(device)), reverse=True)
    kinds = list(dict.fromkeys(device.name for device in ranked))
    chosen = tuple(device for device in devices if device.name == kinds[0]) if kinds else ()
    return chosen, tuple(str(name) for name in kinds[1:])


def _speed(device: Device) -> tuple[int, int, str, int]:
    generation = device.arch or ""
    return len(device.native), len(generation), generation, device.memory_bytes or 0
