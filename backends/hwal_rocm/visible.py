"""The masks of ROCm, which stack: each renumbers what the one before it has left.

ROCR_VISIBLE_DEVICES (indices or the chips' own numbers) filters for the runtime below HIP; GPU_DEVICE_ORDINAL, then
HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES where that is not set, count in what is left. At the first entry that names nothing
a mask stops. (ROCm documentation, "GPU isolation techniques".)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hwal.topology import Device

ROCR, ORDINAL, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"


def visible(devices: Sequence[Device], env: Callable[[str], str | None]) -> tuple[list[Device], list[str]]:
    """The devices that HIP enumerates, in its order, and what there is to say about the masks."""
    left, notes = list(devices), []
    for name in (ROCR, ORDINAL, HIP if env(HIP) is not None else CUDA):
        mask = env(name)
        if mask is None:
            continue
        chosen: list[Device] = []
        for entry in map(str.strip, mask.split(",")):
            found = _entry(left, entry, ids=name == ROCR)
            if found is None or found in chosen:
                why = "names nothing that is left" if found is None else "is named twice"
                notes.append(f"{name}={' '.join(mask.split())}: {entry!r} {why}, and all that follows it is ignored")
                break
            chosen.append(found)
        left = chosen
    if env(ROCR) is not None and (env(HIP) or env(CUDA)) is not None and left:
        notes.append(
            f"{ROCR} and {HIP if env(HIP) is not None else CUDA} are both set: the second counts in what the first leaves"
        )
    return left, notes


def _entry(left: Sequence[Device], entry: str, ids: bool) -> Device | None:
    if entry.isascii() and entry.isdigit():
        return left[int(entry)] if int(entry) < len(left) else None
    found = [device for device in left if ids and device.id is not None and device.id.lower() == entry.lower()]
    return found[0] if found else None
