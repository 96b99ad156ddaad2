"""What NCCL is told by variables, and RCCL, which reads the same: only what it does not find out, or finds out wrongly.

P2P between some pairs, rings, trees, which NIC is near which GPU: NCCL asks the driver for these itself. Nothing here goes by
the name of a board. Of torch's own (TORCH_NCCL_…) none is set: the watch over hangs names a rank long before their limits.
(NCCL user guide, "Environment Variables".)
"""

from __future__ import annotations

from collections.abc import Sequence

from hwal.host import Host
from hwal.topology import Link
from hwal.values import Decision, Plan

NETWORK, INFINIBAND = "/sys/class/net", "/sys/class/infiniband"
OWN = ("lo", "docker")  # beginnings of the names of interfaces that NCCL leaves out by itself


def variables(plan: Plan, links: Sequence[Link], host: Host) -> dict[str, Decision]:
    """The variables for this plan on this machine; empty where one process has nobody to talk to."""
    if plan.world_size == 1:
        return {}
    return _peers(plan, links) | (_interfaces(host) | _adapters(host) if plan.nodes > 1 else {})


def _peers(plan: Plan, links: Sequence[Link]) -> dict[str, Decision]:
    """P2P off where the driver reports it broken between all devices of the run; of single pairs NCCL keeps off by itself."""
    used = {device.index for device in plan.devices}
    between = [link for link in links if {link.a, link.b} <= used]
    if not between or any(link.p2p is not False for link in between):
        return {}
    return {"NCCL_P2P_DISABLE": Decision("1", "the driver reports that no two of these GPUs can read each other's memory")}


def _interfaces(host: Host) -> dict[str, Decision]:
    """Interfaces that lead to no other machine are left out; gloo, which ranks agree over, is kept off the loopback address."""
    names, route = host.names(NETWORK), default_route(host)
    inner = [name for name in names if name != route and not name.startswith(OWN) and _is_inner(host, name)]
    found = {}
    if inner:
        left_out = ",".join(name for name in names if name in inner or name.startswith(OWN))
        why = f"bridges and tunnels ({', '.join(inner)}) lead to no other machine, and NCCL leaves out lo and docker alone"
        found["NCCL_SOCKET_IFNAME"] = Decision(f"^={left_out}", why)
    if route is not None and (loop := _own_loopback(host)) is not None:
        why = f"/etc/hosts has this machine's name at {loop}, where gloo would wait for others; {route} has the default route"
        found["GLOO_SOCKET_IFNAME"] = Decision(route, why)
    return found


def _is_inner(host: Host, name: str) -> bool:
    """Whether an interface is a bridge, a port of one, or a tunnel."""
    folder = f"{NETWORK}/{name}"
    return (
        bool(host.names(f"{folder}/bridge") or host.names(f"{folder}/brport")) or host.read(f"{folder}/tun_flags") is not None
    )


def default_route(host: Host) -> str | None:
    """The interface that the default route goes over, the nearest where there are several."""
    found = []
    for line in (host.read("/proc/net/route") or "").splitlines()[1:]:
        parts = line.split()
        if len(parts) > 7 and parts[1] == parts[7] == "00000000" and parts[6].isdigit():
            found.append((int(parts[6]), parts[0]))
    return min(found)[1] if found else None


def _own_loopback(host: Host) -> str | None:
    """The loopback address that /etc/hosts gives this machine's own name."""
    for line in (host.read("/etc/hosts") or "").splitlines():
        parts = line.partition("#")[0].split()
        if parts and parts[0].startswith("127.") and host.name in parts[1:]:
            return parts[0]
    return None


def _adapters(host: Host) -> dict[str, Decision]:
    """Where InfiniBand and Ethernet adapters are up together, the former: one cannot talk to the other."""
    layers: dict[str, list[str]] = {}
    for adapter in host.names(INFINIBAND):
        for port in host.names(f"{INFINIBAND}/{adapter}/ports"):
            folder = f"{INFINIBAND}/{adapter}/ports/{port}"
            if "ACTIVE" in (host.read(f"{folder}/state") or ""):
                layers.setdefault((host.read(f"{folder}/link_layer") or "").strip(), []).append(adapter)
    fast, other = layers.get("InfiniBand", []), layers.get("Ethernet", [])
    if not fast or not other:
        return {}
    why = f"InfiniBand; {', '.join(dict.fromkeys(other))} speak Ethernet, and the two cannot talk to each other"
    return {"NCCL_IB_HCA": Decision(f"={','.join(dict.fromkeys(fast))}", why)}
