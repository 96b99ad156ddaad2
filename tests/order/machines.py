"""Machines as matrices, the way `nvidia-smi topo -m` and `rocm-smi --showtopo` print them: published ones, and some to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from hypothesis import strategies as st

from hwal.order import Graph, graph
from hwal.topology import Device, Link

MATRICES = {
    "dgx-1v": """
        X NV1 NV1 NV2 NV2 SYS SYS SYS
        NV1 X NV2 NV1 SYS NV2 SYS SYS
        NV1 NV2 X NV2 SYS SYS NV1 SYS
        NV2 NV1 NV2 X SYS SYS SYS NV1
        NV2 SYS SYS SYS X NV1 NV1 NV2
        SYS NV2 SYS SYS NV1 X NV2 NV1
        SYS SYS NV1 SYS NV1 NV2 X NV2
        SYS SYS SYS NV1 NV2 NV1 NV2 X""",
    "v100-other-mesh": """
        X NV1 NV1 NV2 SYS SYS NV2 SYS
        NV1 X NV2 NV1 SYS SYS SYS NV2
        NV1 NV2 X NV2 NV1 SYS SYS SYS
        NV2 NV1 NV2 X SYS NV1 SYS SYS
        SYS SYS NV1 SYS X NV2 NV1 NV2
        SYS SYS SYS NV1 NV2 X NV2 NV1
        NV2 SYS SYS SYS NV1 NV2 X NV1
        SYS NV2 SYS SYS NV2 NV1 NV1 X""",
    "6+2-sockets": """
        X NODE NODE NODE NODE NODE SYS SYS
        NODE X PHB NODE NODE NODE SYS SYS
        NODE PHB X NODE NODE NODE SYS SYS
        NODE NODE NODE X PHB NODE SYS SYS
        NODE NODE NODE PHB X NODE SYS SYS
        NODE NODE NODE NODE NODE X SYS SYS
        SYS SYS SYS SYS SYS SYS X PHB
        SYS SYS SYS SYS SYS SYS PHB X""",
    "p3.8xlarge": "X NV1 NV1 NV2\n NV1 X NV2 NV1\n NV1 NV2 X NV2\n NV2 NV1 NV2 X",
    "a100-pcie-pairs": "X NV12 SYS SYS\n NV12 X SYS SYS\n SYS SYS X NV12\n SYS SYS NV12 X",
    "a6000-one-bridge": "X NV4 NODE\n NV4 X NODE\n NODE NODE X",
    "3060ti": "X SYS SYS\n SYS X PHB\n SYS PHB X",
    "2x5090": "X PHB\n PHB X",
}


def matrix(name: str) -> list[list[str]]:
    return [row.split() for row in MATRICES[name].strip().splitlines()]


def machine(rows: Sequence[Sequence[str]], numa: Sequence[int | None] | None = None) -> tuple[list[Device], list[Link]]:
    """Devices and links of a matrix of classes."""
    devices = [Device("cuda", i, numa=numa[i] if numa else None) for i in range(len(rows))]
    return devices, [Link(a, b, rows[a][b], backend="cuda") for a, b in combinations(range(len(rows)), 2)]


def net(name: str, numa: Sequence[int | None] | None = None) -> Graph:
    return graph(*machine(matrix(name), numa))


CLASSES = st.sampled_from(("NV4", "NV2", "NV1", "PIX", "PHB", "NODE", "SYS", ""))


@st.composite
def nets(draw: st.DrawFn, least: int = 3, most: int = 7) -> Graph:
    """Any machine of a few devices, NUMA nodes and speeds known, unknown, or some of each; a speed may be, or round to, 0."""
    n = draw(st.integers(least, most))
    few = draw(st.lists(CLASSES, min_size=1, max_size=3))
    speeds = st.sampled_from(draw(st.sampled_from(((None,), (0.0,), (1e3, 2e6), (None, 0.0, 25e9)))))
    links = [Link(a, b, draw(st.sampled_from(few)), draw(speeds), backend="cuda") for a, b in combinations(range(n), 2)]
    numa = draw(st.lists(st.sampled_from((None, 0, 1)), min_size=n, max_size=n))
    return graph([Device("cuda", i, numa=numa[i]) for i in range(n)], links)


def islands(sizes: Sequence[int], inside: str, between: str) -> Graph:
    """Devices in islands: linked one way inside, another way between; a NUMA node for each."""
    numa = [i for i, size in enumerate(sizes) for _ in range(size)]
    rows = [["X" if a == b else inside if x == y else between for b, y in enumerate(numa)] for a, x in enumerate(numa)]
    return graph(*machine(rows, numa))


def dgx_1v() -> tuple[list[Link], list[Link]]:
    """The links of a DGX-1V as nvidia-smi prints them, and with the PCIe path beside each."""
    paths = "PIX PHB PHB SYS SYS SYS SYS|PHB PHB SYS SYS SYS SYS|PIX SYS SYS SYS SYS|SYS SYS SYS SYS|PIX PHB PHB|PHB PHB|PIX"
    _, plain = machine(matrix("dgx-1v"))
    return plain, [replace(link, path=path) for link, path in zip(plain, paths.replace("|", " ").split(), strict=True)]
