"""What NCCL is told by variables, and RCCL, which reads the same: only what it does not find out, or finds out wrongly.

P2P between some pairs, rings, trees, which NIC is near which GPU: NCCL asks the driver for these itself. Nothing here goes by
the name of a board. Of torch's own (TORCH_NCCL_…) none is set: the watch over hangs names a rank long before their limits.
(NCCL user guide, "Environment Variables".)
"""

from __future__ import annotations

from collections.abc import Sequence

from hwal.host import Host
from hwal.network import default_route, gloo
from hwal.topology import Link
from hwal.values import Decision, Plan
from hwal_gpu import adapters

NETWORK = "/sys/class/net"
OWN = ("lo", "docker")  # beginnings of the names of interfaces that NCCL leaves out by itself


def variables(plan: Plan, links: Sequence[Link], host: Host) -> dict[str, Decision]:
    """The variables for this plan on this machine; empty where one process has nobody to talk to."""
    if plan.world_size == 1:
        return {}
    return _peers(plan, links) | (_interfaces(host) | gloo(host) | adapters.chosen(host) if plan.nodes > 1 else {})


def _peers(plan: Plan, links: Sequence[Link]) -> dict[str, Decision]:
    """P2P off where the driver reports it broken between all devices of the run; of single pairs NCCL keeps off by itself."""
    used = {device.index for device in plan.devices}
    between = [link for link in links if {link.a, link.b} <= used]
    if not between or any(link.p2p is not False for link in between):
        return {}
    return {"NCCL_P2P_DISABLE": Decision("1", "the driver reports that no two of these GPUs can read each other's memory")}


def _interfaces(host: Host) -> dict[str, Decision]:
    """Interfaces that lead to no other machine are left out."""
    names, route = host.names(NETWORK), default_route(host)
    inner = [name for name in names if name != route and not name.startswith(OWN) and _is_inner(host, name)]
    if not inner:
        return {}
    left_out = ",".join(name for name in names if name in inner or name.startswith(OWN))
    why = f"bridges and tunnels ({', '.join(inner)}) lead to no other machine, and NCCL leaves out lo and docker alone"
    return {"NCCL_SOCKET_IFNAME": Decision(f"^={left_out}", why)}


def _is_inner(host: Host, name: str) -> bool:
    """Whether an interface is a bridge, a port of one, or a tunnel."""
    folder = f"{NETWORK}/{name}"
    return (
        bool(host.names(f"{folder}/bridge") or host.names(f"{folder}/brport")) or host.read(f"{folder}/tun_flags") is not None
    )
