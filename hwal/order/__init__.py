"""Which devices to take, and in which order: rings, the best k, groups. Pure: devices and links in, a proven answer out.

What an order can do: pick k devices of more, make tensor-parallel groups and pipeline neighbours of well-linked devices, pair
ranks with NUMA nodes and NICs. What it cannot: NCCL and RCCL search their own rings over the devices they are given, so a
permutation of all of them makes a plain all-reduce no faster.
"""

from hwal.order.answer import Answer
from hwal.order.graph import Graph, graph
from hwal.order.groups import groups
from hwal.order.kinds import fastest
from hwal.order.pack import pack, simple, static
from hwal.order.parts import pack_parts
from hwal.order.ring import order
from hwal.order.run import for_a_run
from hwal.order.select import select

__all__ = [
    "Answer",
    "Graph",
    "fastest",
    "for_a_run",
    "graph",
    "groups",
    "order",
    "pack",
    "pack_parts",
    "select",
    "simple",
    "static",
]
