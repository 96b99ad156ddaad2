"""What AMD's tools print, read back: each layout there is, and each kind of damage."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

import hwal_rocm
from hwal.errors import RecordError
from hwal.paste import tidy
from hwal.testing.probes import check
from hwal.values import Probe

ROCM_SMI = """\
============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1         GPU2
GPU0   0            15           72
GPU1   15           0            40
GPU2   72           40           0

================================= Hops between two GPUs ==================================
       GPU0         GPU1         GPU2
GPU0   0            1            1
GPU1   1            0            1
GPU2   1            1            0

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            PCIE
GPU2   PCIE         PCIE         0

======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: -1
GPU 1          : (Topology) Numa Node: 1
GPU 2          : (Topology) Numa Node: -1
================================== End of ROCm SMI Log ===================================
"""
AMD_SMI = """\
ACCESS TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 ENABLED      DISABLED
0000:22:00.0 DISABLED     ENABLED

WEIGHT TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 0            15
0000:22:00.0 15           0

LINK TYPE TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 SELF         XGMI
0000:22:00.0 XGMI         SELF

NUMA BW TABLE:
             0000:0c:00.0 0000:22:00.0
0000:0c:00.0 N/A          50000-100000
0000:22:00.0 50000-100000 N/A
"""


def amd_smi_json(**changes: object) -> str:
    def link(gpu: int, there: int) -> dict[str, object]:
        own = {"gpu": there, "bdf": f"0000:0{there}:00.0", "weight": 15, "link_status": "ENABLED", "link_type": "XGMI"}
        if gpu == there:
            return {**own, "weight": 0, "link_type": "SELF", "num_hops": 0, "bandwidth": "N/A"}
        return {**own, "num_hops": 1, "bandwidth": "50000-100000", **changes}

    gpus = [{"gpu": i, "bdf": f"0000:0{i}:00.0", "links": [link(i, j) for j in range(2)]} for i in range(2)]
    return "$ amd-smi topology --json\n" + json.dumps(gpus, indent=4)


BY_FACT = json.dumps(
    [
        {
            "gpu": gpu,
            "link_accessibility": {"gpu_0": "DISABLED", "gpu_1": "DISABLED"},
            "weight": {"gpu_0": 40, "gpu_1": 40},
            "hops": {"gpu_0": 2, "gpu_1": 2},
            "link_type": {f"gpu_{other}": "SELF" if other == gpu else "PCIE" for other in range(2)},
            "numa_bandwidth": {"gpu_0": "N/A", "gpu_1": "N/A"},
        }
        for gpu in range(2)
    ]
)


def changed(text: str, old: str, new: str, place: int = 1) -> str:
    """The text with one of the places changed where `old` stands (1 the first)."""
    parts = text.split(old)
    assert len(parts) > place
    return old.join(parts[:place]) + new + old.join(parts[place:])


def read(text: str) -> Probe:
    probe = hwal_rocm.backend.capture(tidy(text), "capture.txt")
    assert probe is not None
    check(hwal_rocm.backend, probe)
    return probe


def facts(probe: Probe) -> list[tuple[str, float | None, bool | None, int | None]]:
    return [(link.class_, link.bandwidth, link.p2p, link.distance) for link in probe.links]


def test_rocm_smi() -> None:
    probe = read(ROCM_SMI)
    assert facts(probe) == [("XGMI", None, None, 15), ("PCIE", None, None, 72), ("PCIE", None, None, 40)]
    assert [device.numa for device in probe.devices] == [0, 1, None]


def test_a_table_of_types_alone() -> None:
    """As forums collapse it."""
    text = "========================== Link Type between two GPUs ====\nGPU0 GPU1\nGPU0 0 PCIE\nGPU1 PCIE 0\n"
    assert facts(read(text)) == [("PCIE", None, None, None)]


def test_amd_smi() -> None:
    probe = read(AMD_SMI)
    assert facts(probe) == [("XGMI", 100e9, False, 15)]
    assert [device.pci for device in probe.devices] == ["0000:0c:00.0", "0000:22:00.0"]
    assert facts(read(amd_smi_json())) == [("XGMI", 100e9, True, 15)]
    assert facts(read(BY_FACT)) == [("PCIE", None, False, 40)]
    assert facts(read(amd_smi_json(bandwidth="N/A", link_status="DISABLED"))) == [("XGMI", None, False, 15)]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (ROCM_SMI.replace("GPU1   XGMI", "GPU1   PCIE"), 17, "GPU1 to GPU0 is PCIE, but GPU0 to GPU1 is XGMI"),
        (ROCM_SMI.partition("GPU2   PCIE")[0], 18, "the row of GPU2 should have 3 cells, and has 0"),
        (ROCM_SMI.partition("=============================== Link")[0], 13, "no table of link types"),
        (ROCM_SMI.replace("GPU2   72           40 ", "GPU2   72  "), 6, "the row of GPU2 should have 3 cells, and has 2"),
        (ROCM_SMI.replace("XGMI", "WIRE"), 16, "'WIRE' is no type of link"),
        (ROCM_SMI.replace("       GPU0         GPU1         GPU2", "GPU0 GPU1 x", 1), 3, "header should name the GPUs"),
        (AMD_SMI.replace("XGMI         SELF", "PCIE         SELF"), 14, "is PCIE, but"),
        (AMD_SMI.replace("0000:22", "0000:23", 2), 3, "the access table is of other GPUs"),
        (amd_smi_json()[:-40], 47, "not JSON"),
        (amd_smi_json().replace("    },\n    {", "    },\n    ...\n    {"), 27, "left out"),
        (amd_smi_json().replace('"gpu": 1,\n        "bdf"', '"gpu": 7,\n        "bdf"'), 27, "GPU 1 is not in its place"),
        (amd_smi_json(link_type="WIRE"), 3, "GPU 0 to 1 is WIRE"),
        (changed(amd_smi_json(), '"weight": 15', '"weight": 99'), 3, "weight: GPU 0 to 1 is 99, GPU 1 to 0 15"),
        (changed(amd_smi_json(), "50000-100000", "1-999999"), 3, "numa bw: GPU 0 to 1 is 1-999999"),
        (changed(amd_smi_json(), "ENABLED", "DISABLED", 2), 3, "access: GPU 0 to 1 is DISABLED"),
        (amd_smi_json().replace("0000:01:00.0", "0000:00:00.0"), 27, "a second GPU at 0000:00:00.0"),
        (amd_smi_json().replace("0000:01:00.0", "zz:zz"), 27, "'zz:zz', which is no PCI address"),
        (changed(amd_smi_json(), "0000:01:00.0", "0000:02:00.0"), 3, "GPU 0 has GPU 1 at 0000:02:00.0"),
        (BY_FACT.replace('"gpu_1": 40}', '"gpu_1": 72}', 1), 1, "weight: GPU 0 to 1 is 72, GPU 1 to 0 40"),
    ],
)
def test_damage_names_the_line(text: str, line: int, says: str) -> None:
    with pytest.raises(RecordError) as caught:
        read(text)
    assert caught.value.exit_code == 2
    assert says in caught.value.what
    assert caught.value.where == f"capture.txt, line {line}"


def node(simds: int, cores: int = 0, **more: int) -> str:
    return "".join(f"{key} {value}\n" for key, value in {"cpu_cores_count": cores, "simd_count": simds, **more}.items())


def edge(kind: int, to: int, weight: int, least: int = 0, most: int = 0) -> str:
    facts = {"type": kind, "node_to": to, "weight": weight, "min_bandwidth": least, "max_bandwidth": most}
    return "".join(f"{key} {value}\n" for key, value in facts.items())


GPU = {"gfx_target_version": 90010, "unique_id": 0xABC, "location_id": 25344, "domain": 0}
KFD = {
    "nodes/0/properties": node(0, 64),
    "nodes/1/properties": node(0, 64),
    "nodes/2/properties": node(416, io_links_count=2, **GPU),
    "nodes/3/properties": node(416, io_links_count=2, **{**GPU, "unique_id": 0xDEF, "location_id": 17152}),
    "nodes/4/properties": node(416, io_links_count=1, **{**GPU, "unique_id": 0xFFF, "location_id": 512}),
    "nodes/2/io_links/0/properties": edge(2, 0, 20, 312, 32000),
    "nodes/2/io_links/1/properties": edge(11, 3, 15, 50000, 200000),
    "nodes/3/io_links/0/properties": edge(2, 0, 20, 312, 32000),
    "nodes/3/io_links/1/properties": edge(11, 2, 15, 50000, 200000),
    "nodes/4/io_links/0/properties": edge(2, 1, 20, 312, 32000),
    "nodes/2/p2p_links/0/properties": edge(2, 4, 72),
    "nodes/2/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 68702699520\n",
}


def test_kfd() -> None:
    probe = read(json.dumps(KFD))
    assert facts(probe) == [("XGMI", 200e9, True, 15), ("PCIE", None, True, 72), ("", None, None, None)]
    assert probe.links[0].count == 4
    first = probe.devices[0]
    assert (first.id, first.arch, first.pci, first.numa) == ("GPU-0000000000000abc", "gfx90a", "0000:63:00.0", 0)
    assert (first.memory_bytes, probe.devices[1].memory_bytes, probe.devices[2].numa) == (68702699520, None, 1)
    deeper = read(json.dumps({f"topology/{path}": text for path, text in KFD.items()}))
    assert deeper == probe


def test_partitions_name_their_chip() -> None:
    """A run's devices are the partitions; who counts GPUs, as lists of captures do, counts the chips."""
    parts = {**KFD, "nodes/3/properties": KFD["nodes/2/properties"]}
    probe = read(json.dumps(parts))
    assert [device.part_of for device in probe.devices] == ["GPU-0000000000000abc"] * 2 + [None]
    assert [device.id for device in probe.devices][:2] == ["GPU-0000000000000abc/0", "GPU-0000000000000abc/1"]
    assert "the 3 devices are partitions of 1 GPUs" in probe.notes


def test_damaged_kfd_is_refused() -> None:
    less = {path: text for path, text in KFD.items() if path != "nodes/3/io_links/1/properties"}
    with pytest.raises(RecordError, match="node 2 has a link to node 3 which that does not have back"):
        read(json.dumps(less, indent=1))
    lost = {path: text for path, text in KFD.items() if not path.startswith("nodes/4/")}
    with pytest.raises(RecordError, match="node 2 has a link to node 4, which the file lacks"):
        read(json.dumps(lost, indent=1))
    gap = {path: text for path, text in KFD.items() if not path.startswith("nodes/1/")}
    with pytest.raises(RecordError, match="a node 2, but no node 1"):
        read(json.dumps(gap, indent=1))
    half = {**KFD, "nodes/3/properties": KFD["nodes/3/properties"].replace("simd_count 416\n", "")}
    with pytest.raises(RecordError, match="node 3 has properties without simd_count"):
        read(json.dumps(half, indent=1))
    with pytest.raises(RecordError, match="no GPU"):
        read(json.dumps({"nodes/0/properties": node(0, 64)}))
    with pytest.raises(RecordError, match="not JSON"):
        read(json.dumps(KFD)[:-9])


TREE = """\
<system version="2">
  <cpu numaid="0">
    <pci busid="0000:1d:00.0" class="0x038000"><gpu dev="0" gcn="906">
      <xgmi target="0000:20:00.0" count="4" tclass="0x038000"/></gpu></pci>
    <pci busid="0000:20:00.0" class="0x038000"><gpu dev="1" gcn="gfx90a">
      <xgmi target="0000:1d:00.0" count="4" tclass="0x038000"/></gpu></pci>
    <pci busid="0000:23:00.0" class="0x038000"><gpu dev="2" gcn="906"/></pci>
  </cpu>
</system>
"""


def test_the_tree_of_rccl() -> None:
    probe = read(TREE)
    assert [(link.class_, link.count, link.path) for link in probe.links] == [
        ("XGMI", 4, "PHB"),
        ("PHB", None, None),
        ("PHB", None, None),
    ]
    assert [device.arch for device in probe.devices] == ["gfx906", "gfx90a", "gfx906"]
    alone = "\n".join(TREE.splitlines()[:4] + TREE.splitlines()[6:])  # as a job sees it that has a mask
    assert read(alone).notes == ("4 links lead to GPUs that are not in the file: 0000:20:00.0",)
    assert probe.notes == ()
    with pytest.raises(RecordError, match=r"4 xgmi links to 0000:20:00\.0, which has 2 back"):
        read(TREE.replace('target="0000:1d:00.0" count="4"', 'target="0000:1d:00.0" count="2"'))


def test_tables_with_empty_lines_between_their_rows() -> None:
    """As some manuals print them, `--showtopoaccess` among them."""
    access = "=== Link accessibility between two GPUs ===\n\nGPU0 GPU1\n\nGPU0 True False\n\nGPU1 False True\n"
    types = "=== Link Type between two GPUs ===\n\nGPU0 GPU1\n\nGPU0 0 PCIE\n\nGPU1 PCIE 0\n"
    assert facts(read(access + types)) == [("PCIE", None, False, None)]


def test_lspci() -> None:
    line = "c1:00.0 Processing accelerators [1200]: Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [1002:74a1]\n"
    assert [device.pci for device in read(line).devices] == ["0000:c1:00.0"]
    assert hwal_rocm.backend.capture("00:1f.0 ISA bridge [0601]: Intel Corporation [8086:7a04]\n", "x") is None


def test_what_no_tool_prints() -> None:
    for text in ("", "\n", "hello\n", "{}", "[1, 2]", '[{"gpu": 0}]', "GPU0 GPU1\n"):
        assert hwal_rocm.backend.capture(text, "x") is None


def test_every_cut_is_whole_or_refused() -> None:
    for text in (ROCM_SMI, AMD_SMI, amd_smi_json(), BY_FACT, TREE, json.dumps(KFD)):
        for end in range(0, len(text), 11):
            try:
                probe = hwal_rocm.backend.capture(text[:end], "capture.txt")
            except RecordError as error:
                assert ", line " in (error.where or "")
                continue
            if probe is not None:
                check(hwal_rocm.backend, probe)
                assert len(probe.links) == len(list(combinations(probe.devices, 2)))
