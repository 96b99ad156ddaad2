"""What NVIDIA's tools print, read back: each layout there is, and each kind of damage."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

import hwal_cuda
from hwal.errors import RecordError
from hwal.paste import tidy
from hwal.testing.probes import check
from hwal.values import Probe


def read(text: str) -> Probe:
    probe = hwal_cuda.backend.capture(tidy(text), "capture.txt")
    assert probe is not None
    check(hwal_cuda.backend, probe)
    return probe


LIST = """\
GPU 0: NVIDIA H200 (UUID: GPU-5269b708-678a-b1a8-60f0-c90406537486)
  MIG 3g.71gb     Device  0: (UUID: MIG-00000000-0000-0000-0000-000000000000)
  MIG 1g.18gb     Device  1: (UUID: MIG-00000001-0000-0000-0000-000000000001)
GPU 1: NVIDIA H200 (UUID: GPU-a7605225-d684-1f65-4ad4-ee2ab39338b4)
"""
PORTS = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5269b708-678a-b1a8-60f0-c90406537486)
\t Link 0: 25 GB/s
\t Link 1: 25 GB/s
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-a7605225-d684-1f65-4ad4-ee2ab39338b4)
\t Link 0: 25.781 GB/s
\t Link 1: <inactive>
GPU 2: NVIDIA L40S (UUID: GPU-c7605225-d684-1f65-4ad4-ee2ab39338b4)
Device does not have or support Nvlink
"""


def test_lists_of_gpus() -> None:
    probe = read(LIST)
    assert [device.name for device in probe.devices] == ["NVIDIA H200"] * 2
    assert [len(device.parts) for device in probe.devices] == [2, 0]
    assert probe.devices[1].id == "GPU-a7605225-d684-1f65-4ad4-ee2ab39338b4"
    assert any("2 MIG instances" in note for note in probe.notes)


def test_a_gpu_that_cannot_be_reached() -> None:
    """Its number is missing then, and the tool says so."""
    lost = "Unable to determine the device handle for GPU1: 0000:02:00.0: Unknown Error\n"
    probe = read(LIST.replace("GPU 1:", f"{lost}GPU 2:"))
    assert [device.outer for device in probe.devices] == [0, 2]
    assert probe.notes[0] == lost.strip()


def test_nvlinks_with_their_speeds() -> None:
    probe = read(PORTS)
    assert [device.ports for device in probe.devices] == [(25e9, 25e9), (25.781e9,), ()]
    assert "GPU 1 has 1 NVLinks up, others have 2" in probe.notes


def test_ids_that_were_masked_are_left_out() -> None:
    probe = read(LIST.replace("5269b708-678a-b1a8-60f0-c90406537486", "a7605225-d684-1f65-4ad4-ee2ab39338b4"))
    assert [device.id for device in probe.devices] == [None, None]
    assert any("same UUID" in note for note in probe.notes)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (LIST.replace("GPU 1: NVIDIA", "GPU 1 NVIDIA"), 4),
        (LIST.replace("GPU 1:", "GPU 0:"), 4),
        (LIST.replace("GPU 1:", "GPU 2:"), 4),
        (LIST.replace("MIG-00000001-0000-0000-0000-000000000001", "MIG-00000000-0000-0000-0000-000000000000"), 3),
        (LIST + "GPU 2: NVIDIA H2", 5),
        (PORTS.replace("Link 1: 25 GB/s", "Link 0: 25 GB/s"), 3),
        (PORTS.replace("25.781 GB/s", "25.781"), 5),
        (PORTS.replace("\t Link 0: 25 GB/s\n", ""), 1),
        (PORTS.replace("Link 1: 25 GB/s", "Link 55: 25 GB/s"), 1),
        (LIST.replace("Device  1", "Device  2"), 1),
        (LIST.replace("Device  1", "Device  0"), 1),
        ("".join(line for line in LIST.splitlines(True) if "Device  0" not in line), 1),
        (PORTS.partition("\t Link 1: <inactive>")[0], 4),
    ],
)
def test_a_damaged_list_names_the_line(text: str, line: int) -> None:
    with pytest.raises(RecordError) as caught:
        read(text)
    assert caught.value.where == f"capture.txt, line {line}"


CSV = """\
index, name, uuid, pci.bus_id, memory.total [MiB], compute_cap, count
0, NVIDIA A100 80GB PCIe, GPU-5269b708-678a-b1a8-60f0-c90406537486, 00000000:4A:00.0, 81920 MiB, 8.0, 2
1, NVIDIA A100 80GB PCIe, [N/A], 00000000:61:00.0, [Unknown Error], [N/A], 2
"""


@pytest.mark.parametrize("masked", ["XXXX", "GPU-xxxx", "<redacted>", "GPU-5269b708 GPU-5269b708"])
def test_a_uuid_that_was_masked_is_none(masked: str) -> None:
    for text in (CSV, QUERY, XML):
        device = read(re.sub(r"GPU-5269b708[-\w]+", masked.replace("<", "&lt;") if text is XML else masked, text)).devices[0]
        assert device.id is None and all("None" not in part and "XX" not in part for part in device.parts)


def test_rows_of_csv() -> None:
    probe = read(CSV)
    first, second = probe.devices
    assert (first.memory_bytes, first.arch, first.pci, first.outer) == (81920 << 20, "sm_80", "0000:4a:00.0", 0)
    assert (second.id, second.memory_bytes, second.arch) == (None, None, None)
    assert read("uuid, name\nGPU-1, T4\n").devices[0].name == "T4"
    fewer = read("\n".join(CSV.splitlines()[:2]))  # nvidia-smi -i 0
    assert "2 GPUs are in the machine, 1 in the file" in fewer.notes
    in_mig = read("index, name, mig.mode.current\n0, NVIDIA H100, Enabled\n1, NVIDIA H100, Disabled\n")
    assert [bool(device.parts) for device in in_mig.devices] == [True, False]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (CSV.rpartition(", 2\n")[0], 3),
        (CSV.splitlines()[0], 2),
        (CSV.replace(", 2\n", ", 3\n"), 3),
        (CSV.replace("\n1, ", "\n2, "), 3),
        (CSV.replace("\n1, ", "\n0, "), 3),
        (CSV.replace("61:00.0", "4A:00.0"), 3),
        (CSV.replace("00000000:4A", "0000Z000:4A"), 2),
        (CSV.replace("81920 MiB", "ZZ"), 2),
        (CSV.replace("[Unknown Error]", "MiB"), 3),
        (CSV.replace("8.0", "8"), 2),
        (CSV.replace("\n1, ", "\nZ, "), 3),
        (CSV + CSV.splitlines()[0], 4),
    ],
)
def test_damaged_csv_names_the_line(text: str, line: int) -> None:
    with pytest.raises(RecordError) as caught:
        read(text)
    assert caught.value.where == f"capture.txt, line {line}"


QUERY = """
==============NVSMI LOG==============

Driver Version                                         : 590.48.01

Attached GPUs                                          : 2
GPU 00000000:0C:00.0
    Product Name                                       : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                                        : Enabled
    MIG Device
        Index                                          : 0
        GPU Instance ID                                : 9
        Compute Instance ID                            : 0
        Shared FB Memory Usage
            Total                                      : 40448 MiB
    GPU UUID                                           : GPU-5269b708-678a-b1a8-60f0-c90406537486
    FB Memory Usage
        Total                                          : 81559 MiB
    Fabric
        State                                          : In Progress
GPU 00000000:0D:00.0
    Product Name                                       : NVIDIA H100 80GB HBM3
    GPU UUID                                           : GPU-a7605225-d684-1f65-4ad4-ee2ab39338b4
    FB Memory Usage
        Total                                          : N/A
"""
XML = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:53:00.0">
    <product_name>NVIDIA B200</product_name>
    <uuid>GPU-5269b708-678a-b1a8-60f0-c90406537486</uuid>
    <mig_mode><current_mig>Disabled</current_mig></mig_mode>
    <fb_memory_usage><total>183359 MiB</total></fb_memory_usage>
    <fabric><state>Completed</state></fabric>
  </gpu>
</nvidia_smi_log>
"""


MIG_LINES = ("Index", "GPU Instance ID", "Compute Instance ID")


def test_the_whole_query() -> None:
    probe = read(QUERY)
    assert [device.memory_bytes for device in probe.devices] == [81559 << 20, None]
    assert [device.pci for device in probe.devices] == ["0000:0c:00.0", "0000:0d:00.0"]
    assert "GPU 0 is in MIG mode, with 1 instances" in probe.notes
    assert [device.parts for device in probe.devices] == [("MIG-GPU-5269b708-678a-b1a8-60f0-c90406537486/9/0",), ()]
    assert any("error 802" in note for note in probe.notes)
    device = read(XML).devices[0]
    assert (device.name, device.memory_bytes, device.pci) == ("NVIDIA B200", 183359 << 20, "0000:53:00.0")
    assert read(XML).notes == ()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (QUERY.rpartition("GPU 0000")[0], 21),
        (QUERY.rpartition("    GPU UUID")[0], 23),
        (QUERY.replace("0D:00.0", "0C:00.0"), 22),
        *((re.sub(rf"\n *{name}\b.*", "", QUERY, count=1), 7) for name in ("MIG Device", *MIG_LINES)),
        *((re.sub(rf"(\n *{name} .*: )\d+", r"\1ZZ", QUERY, count=1), 7) for name in MIG_LINES),
        (re.sub(r"(\n *Index .*: )0", r"\g<1>1", QUERY), 7),
        (QUERY.replace("81559 MiB", "ZZ"), 7),
        (XML.replace("183359 MiB", "ZZ"), 5),
        (XML.replace("  </gpu>", "<mig_devices><mig_device><index>0</index></mig_device></mig_devices>  </gpu>"), 5),
        (XML.rpartition("  </gpu>")[0], 10),
        (XML.replace("<attached_gpus>1", "<attached_gpus>8"), 3),
        (XML.replace('id="00000000:53:00.0"', 'id=""'), 5),
        (XML.replace("    <uuid>GPU-5269b708-678a-b1a8-60f0-c90406537486</uuid>\n", ""), 5),
    ],
)
def test_a_query_that_is_cut_off_names_the_line(text: str, line: int) -> None:
    with pytest.raises(RecordError) as caught:
        read(text)
    assert caught.value.where == f"capture.txt, line {line}"


LSPCI = """\
00:1f.0 ISA bridge [0601]: Intel Corporation Device [8086:7a04]
0001:00:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)
0b:00.0 VGA compatible controller [0300]: NVIDIA Corporation TU104 [GeForce RTX 2080 SUPER] [10de:1e81] (rev a1)
0005:00:00.0 Bridge [0680]: NVIDIA Corporation Device [10de:1af1] (rev a1)
"""
TREE = """\
<!-- a dump -->
<system version="1">
  <cpu numaid="0">
    <pci busid="0000:18:00.0" class="0x060400">
      <pci busid="0000:1b:00.0" class="0x030200">
        <gpu dev="0" sm="70"><nvlink target="0000:3b:00.0" count="2" tclass="0x030200"/></gpu></pci>
      <pci busid="0000:1c:00.0" class="0x030200"><gpu dev="1" sm="70"/></pci>
    </pci>
    <pci busid="0000:21:00.0" class="0x030200"><gpu dev="2" sm="70"/></pci>
  </cpu>
  <cpu numaid="1">
    <pci busid="0000:3b:00.0" class="0x030200">
        <gpu dev="3" sm="70"><nvlink target="0000:1b:00.0" count="2" tclass="0x030200"/></gpu></pci>
  </cpu>
</system>
"""
SWITCHED = """\
<system version="1"><cpu numaid="0">
<pci busid="0000:1b:00.0" class="0x030200"><gpu dev="0" sm="90">
  <nvlink target="0000:05:00.0" count="5" tclass="0x068000"/>
  <nvlink target="0000:06:00.0" count="4" tclass="0x068000"/></gpu></pci>
<pci busid="0000:1c:00.0" class="0x030200"><gpu dev="1" sm="90">
  <nvlink target="0000:05:00.0" count="5" tclass="0x068000"/>
  <nvlink target="0000:06:00.0" count="4" tclass="0x068000"/></gpu></pci>
</cpu></system>
"""


def test_lists_of_pci() -> None:
    probe = read(LSPCI)
    assert [device.pci for device in probe.devices] == ["0001:00:00.0", "0000:0b:00.0"]
    assert "1 NVSwitches, by which all GPUs are linked alike" in probe.notes
    assert hwal_cuda.backend.capture(LSPCI.splitlines()[0], "x") is None
    with pytest.raises(RecordError, match="two PCI functions in one line"):
        read(LSPCI.replace(" (rev a1)\n", " ", 1))
    with pytest.raises(RecordError, match="is no PCI function"):
        read(LSPCI + "0006:00:00.0 3D controller [0302]: NVIDIA Corp")


def test_the_tree_of_nccl() -> None:
    probe = read(TREE)
    assert [device.numa for device in probe.devices] == [0, 0, 0, 1]
    assert [link.class_ for link in probe.links] == ["PIX", "PHB", "NV2", "PHB", "SYS", "SYS"]
    assert probe.links[2].path == "SYS"
    assert [link.class_ for link in read(SWITCHED).links] == ["NV9"]
    nic = '<pci busid="0000:1d:00.0" class="0x020700"><nic><net name="mlx5_0" dev="0"/></nic></pci>\n    </pci>'
    with_nic = read(TREE.replace("    </pci>", f"  {nic}", 1)).devices
    assert [dict(device.nics) for device in with_nic] == [{"mlx5_0": p} for p in ("PIX", "PIX", "PHB", "SYS")]
    template = read(TREE.replace("<gpu", "<x").replace("</gpu", "</x"))
    assert [link.class_ for link in template.links] == ["PIX", "PHB", "SYS", "PHB", "SYS", "SYS"]


GRAPH = """\
<graphs version="1">
  <graph id="0"><channel><gpu dev="0"/><gpu dev="1"/></channel>
  <channel><gpu dev="1"/><gpu dev="0"/></channel></graph>
</graphs>
"""


def test_the_graphs_of_nccl() -> None:
    probe = read(GRAPH)
    assert [device.outer for device in probe.devices] == [0, 1]
    assert [link.class_ for link in probe.links] == [""]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TREE.replace('target="0000:1b:00.0" count="2"', 'target="0000:1b:00.0" count="1"'), 6),
        (TREE.replace(' count="2"', ""), 6),
        (TREE.replace("0000:1c:00.0", "0000:1b:00.0"), 7),
        (TREE.replace(' busid="0000:21:00.0"', ""), 9),
        (TREE.replace(' numaid="1"', ""), 11),
        (TREE.rpartition("  </cpu>")[0], 14),
        (TREE.replace('<gpu dev="2" sm="70"/>', ""), 9),
        (TREE.replace('<gpu dev="2" sm="70"/>', '<gpu dev="2" sm="70"/><gpu dev="2" sm="70"/>'), 9),
        (TREE.replace('class="0x060400"', ""), 4),
        (TREE.replace('<gpu dev="2" sm="70"/>', 'gpu dev="2" sm="70"/>'), 9),
        (TREE.replace('target="0000:3b:00.0"', 'target="0000:1b:00.0"'), 5),
        (TREE.replace('<cpu numaid="0">', "<x>").replace("</cpu>", "</x>", 1), 5),
        (TREE.replace('<gpu dev="2" sm="70"/>', '<gpu dev="2" sm="70"><nic/></gpu>'), 9),
        (TREE.replace('<gpu dev="2" sm="70"/>', '<gpu dev="2" sm="70"/><pci busid="1" class="0x0"/>'), 9),
        (TREE.replace('<gpu dev="2" sm="70"/>', '<gpu dev="2" sm="70"/><cpu numaid="3"/>'), 9),
        (TREE.replace('<gpu dev="2" sm="70"/></pci>', '<gpu dev="2" sm="70"/></pci><cpu numaid="3"/>'), 9),
        (TREE.replace('<gpu dev="2" sm="70"/>', '<gpu dev="2" sm="70"/><nvlink target="1" count="1"/>'), 9),
        ('<system version="1">\n</system>', 1),
        (GRAPH.replace('<channel><gpu dev="1"/><gpu dev="0"/>', '<channel><gpu dev="1"/><gpu dev="2"/>'), 3),
        (GRAPH.replace('dev="1"', 'dev="x"', 1), 2),
        ("<graphs>\n</graphs>", 1),
    ],
)
def test_a_damaged_tree_names_the_line(text: str, line: int) -> None:
    with pytest.raises(RecordError) as caught:
        read(text)
    assert caught.value.where == f"capture.txt, line {line}"


def test_what_no_tool_prints() -> None:
    for text in ("", "\n\n", "hello, world\n", "import torch\n", "{}", "[1, 2]", "<html></html>", "a, b\n1, 2\n"):
        assert hwal_cuda.backend.capture(text, "x") is None


def test_every_cut_is_whole_or_refused() -> None:
    """A file cut off anywhere gives all pairs of the GPUs it names, or an error that names a line."""
    for text in (LIST, PORTS, CSV, QUERY, XML, LSPCI, TREE, GRAPH):
        for end in range(0, len(text), 7):
            try:
                probe = hwal_cuda.backend.capture(text[:end], "capture.txt")
            except RecordError as error:
                assert ", line " in (error.where or "")
                continue
            if probe is not None:
                check(hwal_cuda.backend, probe)
                pairs = [(link.a, link.b) for link in probe.links]
                assert pairs == list(combinations(range(len(probe.devices)), 2))
