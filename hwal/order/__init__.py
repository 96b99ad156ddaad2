"""Which devices to take, and in which order: rings, the best k, groups. Pure: devices and links in, a proven answer out.

What an order can do: pick k devices of more, make tensor-parallel groups and pipeline neighbours of well-linked devices, pair
ranks with NUMA nodes and NICs. What it cannot: NCCL and RCCL search their own rings over the devices they are given, so a
permutation of all of them makes a plain all-reduce no faster.
"""

from collections.abc import Sequence

from hwal.order.answer import Answer
from hwal.order.graph import Graph, graph
from hwal.order.groups import groups
from hwal.order.kinds import fastest
from hwal.order.pack import pack, simple, static
from hwal.order.ring import order
from hwal.order.select import select
from hwal.topology import Device, Link

__all__ = ["Answer", "Graph", "fastest", "for_a_run", "graph", "groups", "order", "pack", "select", "simple", "static"]


def for_a_run(devices: Sequence[Device], links: Sequence[Link]) -> tuple[Device, ...]:
    """What a run takes when no devices are named, in the order of its ranks: whole devices of one kind, in their best ring."""
    chosen, _ = fastest([device for device in devices if not device.parts])
    return tuple(chosen[place] for place in order(graph(chosen, links)).places)
