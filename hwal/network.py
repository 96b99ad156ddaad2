"""What a machine's network asks of processes on several machines, before they look for each other. Pure: a Host is asked."""

from __future__ import annotations

from hwal.host import Host
from hwal.values import Decision


def gloo(host: Host) -> dict[str, Decision]:
    """The interface that gloo, which ranks agree over, is told, where it would wait for others on the loopback address.

    It listens where /etc/hosts has the machine's own name, and Debian's installer writes `127.0.1.1 NAME` there. Empty where
    that is not so, or no default route says which interface leads out.
    """
    route, loop = default_route(host), _own_loopback(host)
    if route is None or loop is None:
        return {}
    why = f"/etc/hosts has this machine's name at {loop}, where gloo would wait for others; {route} has the default route"
    return {"GLOO_SOCKET_IFNAME": Decision(route, why)}


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
