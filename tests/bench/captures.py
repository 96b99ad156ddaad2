"""Captures of what vendors' tools print, against an index of what is in them; and the orders made of them against brute force.

    python tests/bench/captures.py FOLDER [--damages 40] [--cases gpuallocator_cases.json]

FOLDER holds the captures and index.json: for each file its kind, how many GPUs there are, and the matrix as printed. Told are:
files read as indexed, refused, and read otherwise; damaged copies that are read alike, refused with their line, and read
otherwise (which a file with a GPU or a PCIe path less may be: nothing in it says so); for each matrix of up to eight GPUs the
answers of order, select and groups that no brute force betters; the cases of go-gpuallocator that come out as it has them.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import hwal_cuda
import hwal_rocm
from hwal.errors import RecordError
from hwal.order import Graph, graph, groups, order, pack, select, simple, static
from hwal.order.ring import key
from hwal.paste import tidy
from hwal.topology import Link
from hwal.values import Probe

ORIGINS = ("as indexed", "refused", "otherwise")


def read(text: str) -> Probe | None:
    for backend in (hwal_cuda.backend, hwal_rocm.backend):
        probe = backend.capture(tidy(text), "capture")
        if probe is not None:
            return probe
    return None


def gpus(probe: Probe) -> int:
    """An index counts GPUs: the partitions of one (CPX) are one."""
    return len({device.part_of or str(device.index) for device in probe.devices})


def differs(entry: dict[str, Any], probe: Probe) -> list[str]:
    """In what a probe is not what the index says of its file."""
    found = [] if gpus(probe) == entry["n_gpus"] else [f"{gpus(probe)} GPUs, indexed {entry['n_gpus']}"]
    rows = entry.get("matrix") if entry.get("gpu_matrix_full", True) else None
    for link in probe.links if rows else ():
        printed = rows[link.a][link.b].replace("SOC", "SYS")
        if link.class_ != printed:
            found.append(f"{link.a}-{link.b} is {link.class_}, printed {printed}")
    for name, (count, speeds) in entry.get("links", {}).items():
        ports = probe.devices[int(name)].ports
        if len(ports) != count or sorted({round(port / 1e9, 3) for port in ports}) != speeds:
            found.append(f"GPU {name} has {len(ports)} NVLinks, indexed {count} of {speeds} GB/s")
    return found


def damage(text: str, chance: random.Random) -> str:
    """The text with a line or a word dropped, doubled, changed, glued to the one before, or with its end cut off."""
    lines = text.rstrip("\n").split("\n")
    at = chance.randrange(len(lines))
    words = list(re.finditer(r"\S+", lines[at]))
    way = chance.choice(["drop", "double", "cut", "cut in", *(["word", "glue", "other", "twice"] if words else [])])
    if way == "drop":
        del lines[at]
    elif way == "double":
        lines.insert(at, lines[at])
    elif way == "cut":
        del lines[at:]
    elif way == "cut in":
        lines[at:] = [lines[at][: chance.randrange(len(lines[at]) + 1)]]
    else:
        word = chance.choice(words)
        put = {"word": "", "glue": word[0], "other": "ZZ", "twice": f"{word[0]}\t{word[0]}"}[way]
        before = lines[at][: word.start()]
        lines[at] = (before.rstrip() if way in ("word", "glue") else before) + put + lines[at][word.end() :]
    return "\n".join(lines)


def damaged(text: str, whole: Probe, times: int, chance: random.Random) -> Iterator[str]:
    for _ in range(times):
        try:
            probe = read(damage(text, chance))
        except RecordError as error:
            yield "refused" if re.search(r", line \d+$", error.where or "") else "refused without a line"
        else:
            known = {(link.a, link.b, link.class_) for link in probe.links} if probe else set()
            same = probe is None or known == {(link.a, link.b, link.class_) for link in whole.links}
            yield "known to no reader" if probe is None else "read alike" if same else "read otherwise"


# brute force


def rings(n: int) -> Iterator[tuple[int, ...]]:
    return ((0, *rest) for rest in permutations(range(1, n)))


def ring_of(net: Graph, places: Sequence[int]) -> tuple[int, int, int]:
    """The worst link of the best ring over some devices, its speeds' sum, and how few NUMA nodes they are on."""
    part = net.among(places)
    found = [key(part, ring) for ring in rings(len(places))]
    low = max(one[0] for one in found)
    return low, max(one[2] for one in found if one[0] == low), -len({net.numa[place] for place in places})


def cuts(left: tuple[int, ...], size: int) -> Iterator[list[tuple[int, ...]]]:
    if not left:
        yield []
        return
    for others in combinations(left[1:], size - 1):
        block = (left[0], *others)
        for rest in cuts(tuple(place for place in left if place not in block), size):
            yield [block, *rest]


def inside(net: Graph, cut: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    pairs = [pair for block in cut for pair in combinations(block, 2)]
    return min(net.level[a][b] for a, b in pairs), sum(net.speed[a][b] for a, b in pairs)


def bettered(net: Graph) -> Iterator[tuple[str, bool]]:
    """Each answer over all devices, over k and in blocks of g: whether any other one is better."""
    n = net.n
    yield "order", key(net, order(net).places) < max(key(net, ring) for ring in rings(n))
    chains = max(key(net, line, True) for line in permutations(range(n)))
    yield "order --chain", key(net, order(net, True).places, True) < chains
    for k in range(2, n):
        best = max(ring_of(net, places) for places in combinations(range(n), k))
        yield "select", ring_of(net, select(net, k).places) < best
    for size in (size for size in range(2, n + 1) if n % size == 0):
        yield "groups", inside(net, groups(net, size).blocks) < max(inside(net, cut) for cut in cuts(tuple(range(n)), size))


# go-gpuallocator


def allocated(document: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Each case, and each step of a sequence in which nothing is freed: whether the policy's own answer comes out."""
    wired = {}
    for name, machine in document["topologies"].items():
        classes, paths = machine["smi_equivalent"], machine["pcie_level"]
        wired[name] = [Link(a, b, classes[a][b], path=paths[a][b]) for a, b in combinations(range(machine["n"]), 2)]
    for case in document["cases"]:
        links, everything = wired[case["topology"]], range(document["topologies"][case["topology"]]["n"])
        free = case.get("available", list(everything))
        for step in case.get("steps", [case]):
            k, required = step["size"], step.get("required", ())
            if case["policy"] == "staticDGX":
                answer = static(links, everything, free, k, required)
            else:
                answer = {"bestEffort": pack, "simple": simple}[case["policy"]](links, free, k, required)
            places = sorted(answer.places) if answer else []
            yield case["policy"], places == sorted(step["expected"])
            free = [device for device in free if device not in places]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--damages", type=int, default=40, help="damaged copies of each file")
    parser.add_argument("--cases", type=Path, help="gpuallocator_cases.json; by default the one beside FOLDER")
    args = parser.parse_args()
    index = json.loads((args.folder / "index.json").read_text(encoding="utf-8"))
    counts, damages, force = Counter[str](), Counter[str](), Counter[tuple[str, bool]]()
    nets: set[Graph] = set()
    chance = random.Random(0)
    for entry in index["entries"]:
        text = (args.folder / entry["file"]).read_text(encoding="utf-8-sig")
        try:
            probe = read(text)
        except RecordError as error:
            counts["refused"] += 1
            print(f"refused: {entry['file']}: {error.what} ({error.where})")
            continue
        assert probe is not None, entry["file"]
        wrong = differs(entry, probe)
        counts[ORIGINS[2 * bool(wrong)]] += 1
        if wrong:
            print(f"otherwise: {entry['file']}: {'; '.join(wrong[:3])}")
        if len(text) < 1 << 18:
            damages.update(damaged(text, probe, args.damages, chance))
        if 3 <= len(probe.devices) <= 8:
            nets.add(graph(probe.devices, probe.links))
    print(f"{len(index['entries'])} captures: " + ", ".join(f"{counts[name]} {name}" for name in ORIGINS))
    print(f"{damages.total()} damaged copies: " + ", ".join(f"{count} {name}" for name, count in damages.most_common()))
    for net in sorted(nets, key=lambda net: (net.n, net.names)):
        force.update(bettered(net))
    for name in sorted({name for name, _ in force}):
        print(f"{name:14}{force[name, False]} answers that brute force does not better, {force[name, True]} that it does")
    cases = args.cases or args.folder.parent / "gpuallocator_cases.json"
    if cases.exists():
        policies = Counter(allocated(json.loads(cases.read_text(encoding="utf-8"))))
        for name in sorted({name for name, _ in policies}):
            print(f"{name:14}{policies[name, True]} cases and steps as it has them, {policies[name, False]} otherwise")


if __name__ == "__main__":
    main()
