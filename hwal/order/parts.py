"""The fleet's objective where devices are parts of chips (CPX, DPX): a job on few chips, and whole chips left whole.

The best-effort policy of AMD's device plugin for Kubernetes: of all sets of k the one with the least sum of weights over its
pairs; of equal ones the one that takes from chips of which least is free. A pair weighs 10 on one chip and 20 on two; 10 more
over a direct link, 40 over PCIe, 50 where no path is known; and 10 more on one NUMA node, 20 across nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from hwal.order.answer import Answer
from hwal.order.pack import lowest
from hwal.topology import Device, Link

OBJECTIVE = "pack: least sum of pair weights, then the chips of which least is free (the best effort of AMD's device plugin)"
CHIP, CHIPS = 10, 20
DIRECT, PCIE, UNKNOWN = 10, 40, 50
NODE, NODES = 10, 20


def pack_parts(devices: Sequence[Device], links: Sequence[Link], k: int, required: Collection[int] = ()) -> Answer | None:
    """Indices of k of the free `devices`, `required` ones among them; None where there is no such set.

    From each chip in turn as much as there is, then from the chip nearest to what is taken; the best of all these beginnings.
    """
    free = {device.index: device for device in devices}
    if not (1 <= k <= len(free) and len(required) <= k and set(required) <= set(free)):
        return None
    between = {(min(link.a, link.b), max(link.a, link.b)): link for link in links}

    def weigh(a: int, b: int) -> int:
        one, other = free[a], free[b]
        link = between.get((min(a, b), max(a, b)))
        path = "" if link is None else link.class_
        weight = CHIP if _chip(one) == _chip(other) else CHIPS
        weight += DIRECT if path == "XGMI" or path.startswith("NV") else PCIE if path else UNKNOWN
        return weight + (NODE if one.numa == other.numa else NODES)

    weights = {(a, b): weigh(a, b) for one, other in combinations(sorted(free), 2) for a, b in ((one, other), (other, one))}
    chips: dict[str, list[int]] = {}
    for device in devices:
        chips.setdefault(_chip(device), []).append(device.index)
    beginnings = sorted(chips, key=lambda chip: len(chips[chip]))  # a chip that is in use already first
    sets = [_fill(weights, chips, chip, k, required) for chip in beginnings]
    best = min(sets, key=lambda chosen: _sum(weights, chosen))
    least = _sum(weights, best) == (CHIP + DIRECT + NODE) * k * (k - 1) // 2
    why = "all are on one chip, and no pair can weigh less" if least else "chips were taken one by one, from each beginning"
    return Answer(tuple(sorted(best)), OBJECTIVE, lowest(links, best), least, why, total=-_sum(weights, best))


def _chip(device: Device) -> str:
    return device.part_of or f"{device.index}"


def _sum(weights: Mapping[tuple[int, int], int], chosen: Sequence[int]) -> int:
    return sum(weights[pair] for pair in combinations(chosen, 2))


def _fill(
    weights: Mapping[tuple[int, int], int], chips: Mapping[str, Sequence[int]], first: str, k: int, required: Collection[int]
) -> list[int]:
    """What is required; all that chip `first` has; then, chip by chip, the nearest, of equal ones the largest share."""
    chosen = list(required)
    left = {chip: [index for index in free if index not in required] for chip, free in chips.items()}

    def far(chip: str) -> tuple[float, int, int]:
        share = min(len(left[chip]), k - len(chosen))
        distance = sum(weights[a, b] for a in chosen for b in left[chip]) / len(left[chip])
        return distance, -share, len(chips[chip])

    while len(chosen) < k:
        there = [chip for chip in left if left[chip]]
        chip = first if first in there else min(there, key=far)
        nearest = sorted(left.pop(chip), key=lambda b: sum(weights[a, b] for a in chosen))
        chosen += nearest[: k - len(chosen)]
    return chosen
