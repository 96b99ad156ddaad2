"""Graph: links as numbers. A level for each pair, by class first and speed second; and a speed for the sums.

    direct (NVLink, xGMI; more of them first) > PSB > PIX > PXB > PHB > NODE > SYS, or through the host > unknown

A pair whose devices cannot read each other's memory is rated as going through the host, whatever its class says. A pair that
nothing is known of is rated last, never best. Speeds that no driver reported are assumed, from the table below; they can
decide between two answers with the same worst class, never between classes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hwal.topology import Device, Link

EXACT = 16  # so many devices are ordered exactly: 2^15 sets × 15 ends
TIERS = {"": 0, "PCIE": 1, "SYS": 1, "SOC": 1, "NODE": 2, "PHB": 3, "PXB": 4, "PIX": 5, "PSB": 6, "XGMI": 7}
DIRECT = 7
# GB/s in one direction: of one link (NV1, XGMI), or of the path
ASSUMED = {
    "": 1.0,
    "PCIE": 9.0,
    "SYS": 9.0,
    "SOC": 9.0,
    "NODE": 12.0,
    "PHB": 15.0,
    "PXB": 19.0,
    "PIX": 21.0,
    "PSB": 21.0,
    "XGMI": 50.0,
}
NVLINK = 25.0  # V100 and A100 have links of 25 GB/s, Hopper of 26.6, Blackwell of 53: one link of any beats PIX
VIA_HOST = 6.0

Grade = tuple[int, float, float, float]


@dataclass(frozen=True)
class Graph:
    """A complete graph over devices 0 … n-1.

    Attributes:
        level: level[a][b], 0 the worst that occurs; -1 on the diagonal.
        speed: MB/s, whole numbers, so that sums are exact.
        numa: each device's NUMA node, None where it is not known.
        names: the class of each pair, as printed; "" where nothing is known.
        levels: how many levels there are.
        assumed: "CLASS n GB/s" for each class whose speed was assumed.
    """

    level: tuple[tuple[int, ...], ...]
    speed: tuple[tuple[int, ...], ...]
    numa: tuple[int | None, ...]
    names: tuple[tuple[str, ...], ...]
    levels: int
    assumed: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        return len(self.numa)

    def apart(self, a: int, b: int) -> int:
        """1 where two devices are known to hang on different NUMA nodes."""
        return int(None not in (self.numa[a], self.numa[b]) and self.numa[a] != self.numa[b])

    def is_uniform(self) -> bool:
        """Whether every pair is linked alike: any order is as good, but for NUMA nodes."""
        kinds = {(self.level[a][b], self.speed[a][b]) for a in range(self.n) for b in range(a)}
        return len(kinds) <= 1

    def alike(self) -> str:
        """Why any order is as good, where the graph is uniform."""
        kind = self.name_of(max(self.level[0]))
        return "nothing is known of the links" if kind == "unknown" else f"every pair is linked alike ({kind})"

    def name_of(self, level: int) -> str:
        """The class of a level; the first that occurs where several rate alike."""
        found = (self.names[a][b] for a in range(self.n) for b in range(self.n) if self.level[a][b] == level)
        return next(found, "") or "unknown"

    def among(self, places: Sequence[int]) -> Graph:
        """The part of the graph over some devices, in the order given."""
        return Graph(
            tuple(tuple(self.level[a][b] for b in places) for a in places),
            tuple(tuple(self.speed[a][b] for b in places) for a in places),
            tuple(self.numa[a] for a in places),
            tuple(tuple(self.names[a][b] for b in places) for a in places),
            self.levels,
            self.assumed,
        )


def grade(link: Link | None) -> Grade:
    """What ranks a pair: tier of its class, links in the bundle, reported speed, nearness. Greater is better."""
    if link is None:
        return 0, 0, 0, 0
    bundle = re.fullmatch(r"NV(\d+)", link.class_)
    tier = DIRECT if bundle else TIERS.get(link.class_, 0)
    if link.p2p is False:
        return min(tier, TIERS["SYS"]), 0, 0, 0
    count = int(bundle[1]) if bundle else (link.count or 0) if tier == DIRECT else 0
    near = 0 if link.distance is None else -link.distance
    return tier, count, link.bandwidth or 0, near


def speed(link: Link | None) -> tuple[float, bool]:
    """GB/s in one direction, and whether a driver said so."""
    if link is None:
        return ASSUMED[""], False
    if link.p2p is False:
        return VIA_HOST, False
    if link.bandwidth is not None:
        return link.bandwidth / 1e9, link.source not in ("guess", "table")
    bundle = re.fullmatch(r"NV(\d+)", link.class_)
    if bundle:
        return NVLINK * max(1, int(bundle[1])), False
    known = ASSUMED.get(link.class_, ASSUMED[""])
    return known * (link.count or 1) if link.class_ == "XGMI" else known, False


def graph(devices: Sequence[Device], links: Sequence[Link]) -> Graph:
    """The graph over `devices` of one backend; `links` name devices by index, and others than these are left out."""
    at = {device.index: place for place, device in enumerate(devices)}
    of: dict[tuple[int, int], Link] = {}
    for link in links:
        if link.a in at and link.b in at:
            a, b = at[link.a], at[link.b]
            of[min(a, b), max(a, b)] = link
    n = len(devices)
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    grades = {pair: grade(of.get(pair)) for pair in pairs}
    ranked = sorted(set(grades.values()))
    level_of = {value: i for i, value in enumerate(ranked)}
    level = [[-1] * n for _ in range(n)]
    fast = [[0] * n for _ in range(n)]
    names = [[""] * n for _ in range(n)]
    assumed: set[tuple[str, float]] = set()
    for a, b in pairs:
        found = of.get((a, b))
        place = level_of[grades[a, b]]
        name = label(found)
        names[a][b] = names[b][a] = name
        gb, reported = speed(found)
        if not reported:
            assumed.add((name or "unknown", gb))
        level[a][b] = level[b][a] = place
        fast[a][b] = fast[b][a] = round(gb * 1000)
    return Graph(
        tuple(map(tuple, level)),
        tuple(map(tuple, fast)),
        tuple(device.numa for device in devices),
        tuple(map(tuple, names)),
        len(ranked),
        tuple(f"{name} {gb:g} GB/s" for name, gb in sorted(assumed)),
    )


def label(link: Link | None) -> str:
    """The class as printed, and whether the pair has to go through the host."""
    if link is None:
        return ""
    return f"{link.class_} without P2P" if link.p2p is False else link.class_
