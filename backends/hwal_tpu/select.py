"""What stands after the colon of `--device tpu:…`."""

from __future__ import annotations

from collections.abc import Sequence

from hwal.errors import DeviceError, TargetError
from hwal.topology import Device
from hwal.values import Probe, Target
from hwal_tpu.chips import is_block, kind_of, type_of
from hwal_tpu.probe import chip_of
from hwal_tpu.virtual import MOST, count, is_meant, is_virtual


def select(asked: Target, probe: Probe) -> tuple[Device, ...] | None:
    """The devices of `cpu`, `cpu:4` and `v5e-8`; None for a list of indices or ids.

    Raises TargetError for a number of virtual devices that cannot be, DeviceError where other devices are here than asked for.
    """
    where = f"--device {asked}"
    if is_meant(asked.spec):
        return _virtual(count(asked.spec) or 0, probe, where, asked)
    kind = kind_of(asked.spec)
    if kind is None:
        return None
    generation, chips = kind
    here = len({chip_of(device) for device in probe.devices})
    arch = probe.devices[0].arch if probe.devices else None
    if arch != generation.name or chips != here:
        raise DeviceError(
            f"a {type_of(generation, chips)} was asked for, {chips} × TPU {generation.name}; here are {here} × TPU {arch}",
            where=where,
            hint="--device tpu takes those that are here",
        )
    return probe.devices


def _virtual(number: int, probe: Probe, where: str, asked: Target) -> tuple[Device, ...]:
    if not number:
        raise TargetError(
            f"{asked.spec!r} is not a number of XLA's CPU devices: cpu, or cpu:1 to cpu:{MOST}",
            where=where,
            hint="--device tpu:cpu:4",
        )
    have = len(probe.devices) if all(map(is_virtual, probe.devices)) else 0
    if have != number:
        raise DeviceError(
            f"{number} device(s) of XLA's CPU platform asked for, {have} are there",
            where=where,
            hint="ask this machine and not another's file" if not have else f"--device tpu:cpu:{have}",
        )
    return probe.devices


def check_block(chosen: Sequence[Device], probe: Probe, where: str) -> None:
    """Raises DeviceError where the chosen devices are not what one process can have: all chips, one, or 2 or 4 in a block."""
    chips = list(dict.fromkeys(map(chip_of, probe.devices)))
    taken = sorted({chips.index(chip_of(device)) for device in chosen})
    whole_chips = sum(chips.index(chip_of(device)) in taken for device in probe.devices) == len(chosen)
    if not (whole_chips and is_block(taken, len(chips))):
        raise DeviceError(
            f"these {len(chosen)} of {len(probe.devices)} TPU devices are no block that one process can have",
            where=where,
            why="a process has all chips, one, or 2 or 4 that lie together (0,1 or 2,3); the cores of a chip go together",
            hint=f"--device {probe.backend} takes all of them",
        )
