"""Which precision to train in: what the devices compute natively (P6)."""

from __future__ import annotations

from collections.abc import Sequence

from hwal.choose import describe
from hwal.errors import PlanError
from hwal.topology import Device
from hwal.values import AUTO, Caps, Decision

FULL = "fp32"


def decide_precision(asked: str, devices: Sequence[Device], caps: Caps) -> tuple[Decision, tuple[str, ...]]:
    """The precision and why, and a note with the price where it would be emulated.

    `auto` takes the first precision of the first device's `native` that all devices have: a backend lists them in the
    order it wants them taken (bf16 before fp16, which needs loss scaling; fp16 behind fp32, or not at all, where it
    should only be used when asked for). Raises PlanError when a device has no such precision.
    """
    return (_auto(devices), ()) if asked == AUTO else _asked(asked, devices, caps)


def _auto(devices: Sequence[Device]) -> Decision:
    preferred = next((name for name in devices[0].native if all(name in device.native for device in devices)), FULL)
    if preferred != FULL:
        return Decision(preferred, _by(preferred, devices))
    faster = next((name for device in devices for name in list(device.native)[:1] if name != FULL), FULL)
    if faster != FULL:  # one device would rather have it, another has not got it
        without = next(device for device in devices if faster not in device.native)
        return Decision(FULL, f"device {without.index} ({without.name or without.backend}) has no native {faster}")
    return Decision(FULL, f"nothing narrower is native to {describe(devices)}")


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
