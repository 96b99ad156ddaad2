"""How two GPUs are linked, from what each end tells: NVLinks that are up and where they lead, the PCIe path, P2P status."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from hwal.topology import Link
from hwal_cuda.report import Gpu, Pair


def links(gpus: Sequence[Gpu], pairs: Sequence[Pair]) -> list[Link]:
    """A Link for each pair of `gpus`, in their order. Counted and summed over links that are up; no speed is assumed."""
    told = {(pair.a, pair.b): pair for pair in pairs}
    found = []
    for (a, one), (b, other) in combinations(enumerate(gpus), 2):
        pair = told.get((min(one.index, other.index), max(one.index, other.index)), Pair(0, 0))
        count, speed = bundle(one, other)
        if count:
            found.append(Link(a, b, f"NV{count}", speed, pair.read, "driver", "cuda", count=count, path=pair.path))
        else:
            found.append(Link(a, b, pair.path or "", None, pair.read, "driver", "cuda"))
    return found


def bundle(one: Gpu, other: Gpu) -> tuple[int, float | None]:
    """NVLinks between two GPUs, directly or over switches of the same fabric, and their bytes per second in one direction."""
    ends = []
    for gpu, peer in ((one, other), (other, one)):
        direct = [port for port in gpu.ports if port.remote in ("gpu", None) and port.peer == peer.pci and peer.pci]
        ends.append(direct or ([port for port in gpu.ports if port.remote == "switch"] if same_fabric(one, other) else []))
    fewer = min(ends, key=len)
    speeds = [port.speed for port in fewer]
    known = [speed for speed in speeds if speed]
    return len(fewer), sum(known) * 1e6 if known and len(known) == len(speeds) else None


def same_fabric(one: Gpu, other: Gpu) -> bool:
    """Whether switches join the two: always, where the driver tells no fabric (A100 and before); else by cluster and clique."""
    a, b = one.fabric, other.fabric
    if a is None or b is None or "not supported" in (a.state, b.state):
        return True
    return a.state == b.state == "completed" and (a.cluster, a.clique) == (b.cluster, b.clique)


def notes(gpus: Sequence[Gpu], found: Sequence[Link]) -> list[str]:
    """NVLinks that are down, and pairs that cannot read each other's memory."""
    told = [
        f"GPU {gpu.index}: {gpu.down} of {gpu.down + len(gpu.ports)} NVLinks are down" for gpu in gpus if gpu.down and gpu.ports
    ]
    blocked = [f"{link.a}-{link.b}" for link in found if link.p2p is False]
    if blocked:
        which = "no pair" if len(blocked) == len(found) else f"not {' '.join(blocked)}"
        told.append(f"P2P: {which} can read each other's memory; what they exchange goes through the host")
    return told
