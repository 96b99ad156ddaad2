"""`hwal devices --svg FILE`: a document that can be parsed, with each device, its ring and its links in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hwal.cli.picture import draw, islands
from hwal.order import graph, order
from hwal.topology import Device, Link
from tests.cli.paper import Result
from tests.order.machines import MATRICES, machine, matrix

SVG = "{http://www.w3.org/2000/svg}"


def picture(devices: list[Device], links: list[Link], title: str = "8 × <GPU> & more") -> ElementTree.Element:
    return ElementTree.fromstring(draw(title, devices, links, order(graph(devices, links))))


def texts(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def lines(root: ElementTree.Element) -> list[str]:
    """What the drawn links say of themselves."""
    return [each.findtext(f"{SVG}title") or "" for each in root.iter(f"{SVG}path") if each.find(f"{SVG}title") is not None]


def test_a_mesh() -> None:
    root = picture(*machine(matrix("dgx-1v"), (0, 0, 0, 0, 1, 1, 1, 1)))
    said = texts(root)
    assert "8 × <GPU> & more" in said
    assert [text for text in said if text.isdigit()] == list("03215674")
    assert "ring (thick): 0 3 2 1 5 6 7 4; worst link NV2, proven" in said
    assert {"NV2: 8 pairs", "NV1: 8 pairs", "SYS: 12 pairs (not drawn)"} < set(said)
    drawn = lines(root)
    assert len(drawn) == 16 and drawn[-1].endswith("NV2"), "the ring is drawn last, on top"
    assert not any(text.startswith("island") for text in said), "all are one island"


def test_islands_are_marked() -> None:
    devices, links = machine(matrix("a100-pcie-pairs"))
    assert islands(devices, links) == [[0, 1], [2, 3]]
    said = texts(picture(devices, links))
    assert {"island 1", "island 2"} < set(said)
    assert "SYS: 4 pairs (drawn only in the ring)" in said
    assert islands(*machine(matrix("a6000-one-bridge"))) == [[0, 1]]


@pytest.mark.parametrize("name", MATRICES)
def test_each_ring_is_drawn(name: str) -> None:
    devices, links = machine(matrix(name))
    ring = order(graph(devices, links)).places
    used = {tuple(sorted(pair)) for pair in zip(ring, ring[1:] + ring[:1], strict=True)}
    drawn = {tuple(map(int, text.partition(":")[0].split(" – "))) for text in lines(picture(devices, links))}
    assert used <= drawn


def test_nics_stand_in_the_boxes() -> None:
    near: list[dict[str, str]] = [{"mlx5_0": "PIX"}, {"rocep4s0f0np0": "PXB"}, {"mlx5_2": "SYS", "mlx5_3": "SYS"}, {}]
    devices, links = machine(matrix("p3.8xlarge"))
    said = texts(picture([replace(device, nics=nics) for device, nics in zip(devices, near, strict=True)], links))
    assert {"mlx5_0 PIX", "rocep4s0f0… PXB", "2 NICs SYS", "NICs of 2: mlx5_2 mlx5_3"} < set(said)
    assert len(said) - len(texts(picture(devices, links))) == 4


def test_what_is_not_known_is_not_called_proven() -> None:
    said = texts(picture([Device("cuda", i) for i in range(3)], [Link(a, b, "") for a, b in ((0, 1), (0, 2), (1, 2))]))
    assert "ring (thick): 0 1 2: as they are, for nothing is known of how they are linked" in said


def test_one_and_many() -> None:
    assert texts(picture([Device("cuda", 0, numa=0)], []))[1:] == ["0", "NUMA 0", "a single device"]
    first, second = (each for each in picture(*machine(matrix("2x5090"))).iter(f"{SVG}rect") if each.get("stroke"))
    assert first.get("y") == second.get("y"), "two stand side by side"
    devices = [Device("cuda", i) for i in range(72)]
    links = [Link(a, b, "NV18", p2p=a > 0) for a, b in combinations(range(72), 2)]
    root = picture(devices, links)
    assert len(lines(root)) == 72, "the ring alone: chords would hide each other"
    assert "NV18 without P2P: 71 pairs (drawn only in the ring)" in texts(root)


def test_the_command(hwal: Callable[..., Result], folder: Path) -> None:
    result = hwal("devices", "--device", "null", "--svg", "machine.svg")
    assert (result.code, result.err) == (0, "hwal: machine.svg shows 3 × imaginary device\n")
    root = ElementTree.parse(folder / "machine.svg").getroot()
    assert "paper 3 × imaginary device" in texts(root) and "NULL: 3 pairs" in texts(root)
    failed = hwal("devices", "--svg", "no/such/folder.svg")
    assert failed.code == 1 and "the picture cannot be written" in failed.err
