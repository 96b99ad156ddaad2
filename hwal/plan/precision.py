"""Which precision to train in: what the devices compute natively (P6)."""

from __future__ import annotations

from collections.abc import Sequence

from hwal.choose import describe
from hwal.errors import PlanError
from hwal.topology import Device
from hwal.values import AUTO, Caps, Decision

FULL = "fp32"
NARROW = ("bf16", "fp16")  # in the order auto would rather have them


def decide_precision(asked: str, devices: Sequence[Device], caps: Caps) -> tuple[Decision, tuple[str, ...]]:
    """The precision and why, and a note with the price where it would be emulated.

    `auto` takes bf16 where every device has it natively; else fp16, which needs loss scaling, where every device has it
    natively and its backend lists it before fp32 (see Device.native); else fp32. Raises PlanError when a device has no
    such precision.
    """
    return (_auto(devices), ()) if asked == AUTO else _asked(asked, devices, caps)


def _auto(devices: Sequence[Device]) -> Decision:
    for name in NARROW:
        if all(_wanted(name, device) for device in devices):
            return Decision(name, _by(name, devices))
    for name in NARROW:  # one device has it, another has not
        if any(_wanted(name, device) for device in devices):
            without = next(device for device in devices if not _wanted(name, device))
            return Decision(FULL, f"device {without.index} ({without.name or without.backend}) has no native {name}")
    return Decision(FULL, f"nothing narrower is native to {describe(devices)}")


def _wanted(name: str, device: Device) -> bool:
    """Whether auto may take `name` on the device: bf16 that is native; fp16 that is native and listed before fp32."""
    order = list(device.native)
    return name in order and (name != "fp16" or FULL not in order or order.index(name) < order.index(FULL))


def _asked(asked: str, devices: Sequence[Device], caps: Caps) -> tuple[Decision, tuple[str, ...]]:
    without = [device for device in devices if asked not in device.native]
    if not without:
        return Decision(asked, f"asked for; {_by(asked, devices)}"), ()
    if asked == FULL:
        return Decision(asked, "asked for"), ()
    cost = caps.emulated.get(asked)
    if cost is None:
        common = [name for name in devices[0].native if all(name in device.native for device in devices)]
        emulated = [f"{name} (emulated)" for name in caps.emulated if name not in common]
        alternatives = [*dict.fromkeys([*common, FULL]), *emulated]
        raise PlanError(
            f"{describe(without)} cannot compute in {asked}; it can in {', '.join(alternatives)}",
            where=f"--precision {asked}",
            hint=f"--precision {alternatives[0]}, or --precision auto",
        )
    return (
        Decision(asked, "asked for; emulated"),
        (f"{asked} is emulated on {describe(without)}: {cost}; --precision auto takes {_auto(devices).value}",),
    )


def _by(name: str, devices: Sequence[Device]) -> str:
    """`native: AVX512-BF16, from procfs`."""
    units = ", ".join(dict.fromkeys(device.native[name] for device in devices))
    source = devices[0].sources.get("native")
    return f"native: {units}" + (f", from {source}" if source else "")
