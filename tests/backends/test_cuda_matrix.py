"""`nvidia-smi topo -m` and `-p2p`, read back: each layout there is, and each kind of damage."""

from __future__ import annotations

import pytest

from hwal.errors import RecordError
from tests.backends.test_cuda_captures import read

TABS = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV4\tSOC\tPIX\t0-15\t0\t\tN/A
GPU1\tNV4\t X \tSYS\tPIXNODE\t0-15\t0\t\tN/A
GPU2\tSYS\tSYS\t X \t\t\t1\t\t2
NIC0\tPIX\tPIX\tSYS\t X \t\t\t

Legend:

  X    = Self
"""
SPACES = """\
$ nvidia-smi topo -m
        GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PHB     SYS     0-5     3               N/A
GPU1    PHB      X      SYS     0-5     0-3             N/A
"""
PASTED = """\
# \tGPU0\tGPU1\tmlx5_0 CPU Affinity NUMA Affinity
# GPU0\tX\tNV12\tSYS\t24-31\t3
# GPU1\tNV12\tX\tSYS\t\t\tN/A
"""
BARE = "  GPU0GPU1\n  GPU0  X  NV2\n\n  GPU1 NV2  X\n"


@pytest.mark.parametrize(
    ("text", "classes", "numa"),
    [
        (TABS, ("NV4", "SYS", "SYS"), [0, 0, 1]),
        (SPACES, ("PHB",), [3, None]),
        (PASTED, ("NV12",), [3, None]),
        (BARE, ("NV2",), [None, None]),
    ],
    ids=("tabs", "spaces", "pasted", "bare"),
)
def test_the_matrix(text: str, classes: tuple[str, ...], numa: list[int | None]) -> None:
    probe = read(text)
    assert tuple(link.class_ for link in probe.links) == classes
    assert [device.numa for device in probe.devices] == numa
    assert all(link.count == int(link.class_[2:]) for link in probe.links if link.class_.startswith("NV"))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (TABS.replace("GPU1\tNV4", "GPU1\tNV3"), 3, "GPU1 to GPU0 is NV3, but GPU0 to GPU1 is NV4"),
        ("\n".join(TABS.splitlines()[:3]), 4, "the row of GPU2 is missing"),
        (TABS.replace("GPU2\tSYS", "GPU5\tSYS"), 4, "the row of GPU2 begins with 'GPU5'"),
        (TABS.replace("NV4\t X \tSYS", "NV4 X"), 3, "is no kind of link"),
        (SPACES.replace("PHB      X ", "PHB      "), 4, "the row of GPU1 has SYS where GPU1 stands"),
        (SPACES.replace("PHB      X ", "X       PHB"), 4, "a cell is missing or too many"),
        (BARE.replace("NV2  X", "NVX  X"), 4, "'NVX' in the row of GPU1 is no kind of link"),
        ("\tGPU0\tGPU1\nGPU0\t X ", 2, "the row of GPU0 has 1 cells for 2 GPUs"),
        (BARE.replace("GPU0GPU1", "GPU0"), 2, "the row of GPU0 has more cells than the header has columns"),
        (BARE + "GPU2 NV2 NV2\n", 5, "a row of GPU2, which has no column"),
        (BARE + "GPU1 NV2 X\n", 5, "a row of GPU1, which has one already"),
        (TABS.partition("\n")[2], 1, "no header above the row of GPU0"),
        (SPACES.replace("GPU0    GPU1    mlx5_0", "GPU1    GPU1    mlx5_0"), 3, "no header above the row of GPU0"),
        ("\tGPU0\tGPU0\nGPU0\t X \t X ", 1, "the header's GPU columns are GPU0 GPU0"),
    ],
)
def test_a_damaged_matrix_names_the_line(text: str, line: int, says: str) -> None:
    with pytest.raises(RecordError) as caught:
        read(text)
    assert caught.value.where == f"capture.txt, line {line}"
    assert says in caught.value.what
    assert caught.value.exit_code == 2


PEERS = """\
 \tGPU0\tGPU1\tGPU2\t
 GPU0\tX\tOK\tGNS\t
 GPU1\tOK\tX\tU\t
 GPU2\tGNS\tU\tX\t

Legend:

  X    = Self
  OK   = Status Ok
"""


def test_who_reads_whose_memory() -> None:
    """`topo -p2p r`, by itself and below the matrix of links."""
    alone = read(PEERS)
    assert [(link.class_, link.p2p) for link in alone.links] == [("", True), ("", False), ("", None)]
    both = read(f"$ nvidia-smi topo -m\n{TABS}\n$ nvidia-smi topo -p2p r\n{PEERS}")
    assert [(link.class_, link.p2p) for link in both.links] == [("NV4", True), ("SYS", False), ("SYS", None)]
    assert both.devices == read(TABS).devices
    with pytest.raises(RecordError, match="a second matrix, of other GPUs than the first"):
        read(TABS + BARE)
    with pytest.raises(RecordError, match="a second matrix that is not the first's"):
        read(TABS + TABS.replace("SYS", "NODE").replace("SOC", "NODE"))
    assert read(TABS + TABS).links == read(TABS).links
    with pytest.raises(RecordError, match="'NV4' in the row of GPU1 is no kind of link"):
        read(PEERS.replace("GPU1\tOK\tX\tU", "GPU1\tOK\tX\tNV4"))


@pytest.mark.parametrize(
    ("row", "numa"),
    [
        ("0-15\t3\t\tN/A", 3),
        ("0-15\t\t\t2", None),  # the GPU's own node is no node of a CPU
        ("\t3\t\t2", 3),
        ("PH0-15\t3\t\t2", None),  # glued: which column is which?
        ("0-15\t0-3\t\tN/A", None),
    ],
)
def test_the_numa_node_beside_the_gpu_s_own(row: str, numa: int | None) -> None:
    text = f"\tGPU0\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \tPHB\t{row}\n"
    assert read(text.replace("PHB\tPH0", "PH0")).devices[0].numa == numa


NICS = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity
GPU0\t X \tNV4\tPIX\tSYS\tSYS\t0-15
GPU1\tNV4\t X \tSYS\tPXB\tPXB\t0-15
NIC0\tPIX\tSYS\t X \tSYS\tSYS

NIC Legend:
  NIC0: mlx5_0
  NIC2: rocep4s0f0
"""


def test_nics_by_gpu() -> None:
    expected = [{"mlx5_0": "PIX"}, {"NIC1": "PXB", "rocep4s0f0": "PXB"}]
    assert [device.nics for device in read(NICS).devices] == expected
    glued = NICS.replace("SYS\tPXB\tPXB", "SYS\tPXBPXB")
    assert [device.nics for device in read(glued).devices] == expected
    cut = NICS.replace("SYS\tPXB\tPXB", "SYS\tPXB")
    assert [device.nics for device in read(cut).devices] == [expected[0], {}], "which is whose?"
    assert read(SPACES).devices[0].nics == {"mlx5_0": "SYS"}
    assert read(NICS.replace("SYS\tPXB", "SOC\tPXB")).devices[1].nics == expected[1]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("NV4\tPIX", "NV4\tSYS", 4),
        ("NIC0\tPIX", "NIC0\tPXB", 4),
        ("NIC0\tPIX\tSYS", "NIC0\tPIX", 4),
        ("NIC0\tPIX\tSYS", "NIC0\tPIX\tSYS\tSYS", 4),
        ("\n\nNIC L", "\nNIC0\tPIX\tSYS\t X \tSYS\tSYS\n\nNIC L", 5),
    ],
)
def test_a_nic_s_row_says_what_the_gpus_rows_say(old: str, new: str, line: int) -> None:
    assert NICS.count(old) == 1
    with pytest.raises(RecordError, match="NIC0") as caught:
        read(NICS.replace(old, new))
    assert caught.value.where == f"capture.txt, line {line}"
