"""Which InfiniBand and RoCE adapters ranks on several machines talk over, where a machine has both.

The kernel has both kinds under /sys/class/infiniband; a port's link layer tells them apart, and its rate what it
carries. One kind cannot talk to the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from hwal.finding import Finding
from hwal.host import Host
from hwal.values import Decision

INFINIBAND = "/sys/class/infiniband"
CLEAR = 2  # times the other layer's bandwidth: below it, which of the two the machines train over is anybody's guess
SHOWN = 4  # ports of a layer that a sentence names


class Port(NamedTuple):
    """A port that is up: `mlx5_0:1`, InfiniBand or Ethernet, and Gb/s (None where sysfs does not tell)."""

    name: str
    layer: str
    rate: float | None


def ports(host: Host) -> list[Port]:
    """All ports that are up, by adapter."""
    found = []
    for adapter in host.names(INFINIBAND):
        for number in host.names(f"{INFINIBAND}/{adapter}/ports"):
            folder = f"{INFINIBAND}/{adapter}/ports/{number}"
            if "ACTIVE" in (host.read(f"{folder}/state") or ""):
                rate = re.match(r"[\d.]+(?= Gb/sec)", host.read(f"{folder}/rate") or "")
                layer = (host.read(f"{folder}/link_layer") or "").strip()
                found.append(Port(f"{adapter}:{number}", layer, float(rate[0]) if rate else None))
    return found


class Layer(NamedTuple):
    """All ports of one link layer that are up, and their Gb/s in sum (None where that of one is not known)."""

    name: str
    ports: list[Port]
    rate: float | None

    def __str__(self) -> str:
        names = f"{', '.join(port.name for port in self.ports[:SHOWN])}{' …' * (len(self.ports) > SHOWN)}"
        return f"{self.name} {'at an unknown rate' if self.rate is None else f'{self.rate:g} Gb/s'} ({names})"


def both(host: Host) -> tuple[Layer, Layer] | None:
    """InfiniBand and Ethernet where both are up, that with more bandwidth first; None where there is one of them, or none."""
    up = ports(host)
    found = []
    for name in ("InfiniBand", "Ethernet"):
        own = [port for port in up if port.layer == name]
        known = [port.rate for port in own if port.rate is not None]
        found.append(Layer(name, own, sum(known) if len(known) == len(own) else None))
    fast, slow = sorted(found, key=lambda layer: -(layer.rate or 0))
    return (fast, slow) if fast.ports and slow.ports else None


def is_clear(fast: Layer, slow: Layer) -> bool:
    return fast.rate is not None and slow.rate is not None and fast.rate >= CLEAR * slow.rate


def chosen(host: Host) -> dict[str, Decision]:
    """NCCL_IB_HCA with the ports of the layer that has clearly more bandwidth; empty where neither has, or there is one."""
    found = both(host)
    if found is None or not is_clear(*found):
        return {}
    fast, slow = found
    why = f"{fast} has more bandwidth than {slow}, and the two cannot talk to each other"
    return {"NCCL_IB_HCA": Decision(f"={','.join(port.name for port in fast.ports)}", why)}


def unclear(host: Host) -> Iterator[Finding]:
    """That hwal does not choose between two layers, and how a person does."""
    found = both(host)
    if found is not None and not is_clear(*found):
        fast, slow = found
        evidence, so = f"{fast}, {slow}", "a run on several machines may join adapters that cannot talk to each other, and hang"
        remedy = f"export NCCL_IB_HCA=={','.join(port.name for port in fast.ports)}, or the others, alike on every machine"
        yield Finding("note", "network", "InfiniBand and Ethernet adapters are both up", evidence, so, remedy)
