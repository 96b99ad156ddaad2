"""GPU machines on paper: what NVML, sysfs and KFD would say on each. `python -m tests.backends.gpus` writes tests/hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from hwal.host import RECORDING, Output, Recording
from hwal_cuda.report import Fabric, Gpu, Instance, Pair, Port, Report, Trouble
from tests.order.machines import MATRICES

HOSTS = Path(__file__).parents[1] / "hosts"
READER = "hwal_cuda.nvml:read"
GIB = 1 << 30
NV = {1: 20000, 2: 25781, 3: 25000, 4: 26562, 5: 53125}  # MB/s of a link in one direction, by generation
KINDS: Mapping[str, tuple[str, tuple[int, int], int]] = {
    "p100": ("Tesla P100-SXM2-16GB", (6, 0), 16),
    "v100": ("Tesla V100-SXM2-32GB", (7, 0), 32),
    "t4": ("Tesla T4", (7, 5), 15),
    "2080": ("NVIDIA GeForce RTX 2080 SUPER", (7, 5), 8),
    "a100": ("NVIDIA A100-SXM4-80GB", (8, 0), 80),
    "a100-pcie": ("NVIDIA A100 80GB PCIe", (8, 0), 80),
    "a6000": ("NVIDIA RTX A6000", (8, 6), 48),
    "3090": ("NVIDIA GeForce RTX 3090", (8, 6), 24),
    "4090": ("NVIDIA GeForce RTX 4090", (8, 9), 24),
    "l40s": ("NVIDIA L40S", (8, 9), 45),
    "h100": ("NVIDIA H100 80GB HBM3", (9, 0), 80),
    "h200": ("NVIDIA H200", (9, 0), 141),
    "h20": ("NVIDIA H20", (9, 0), 96),
    "b200": ("NVIDIA B200", (10, 0), 180),
    "gb200": ("NVIDIA GB200", (10, 0), 185),
    "gb10": ("NVIDIA GB10", (12, 1), 119),
    "a40-vgpu": ("NVIDIA A40-24Q", (8, 6), 24),
}


def uuid(i: int) -> str:
    return f"GPU-{0x10000000 + i:08x}-5a5a-4b4b-8c8c-00000000000{i % 16:x}"


def bus(i: int) -> str:
    return f"0000:{0x10 + 8 * i:02x}:00.0"


def gpu(kind: str, i: int, **more: Any) -> Gpu:
    name, capability, gib = KINDS[kind]
    return replace(Gpu(i, None, uuid(i), name, bus(i), gib * GIB, capability), **more)


def wired(kind: str, rows: Sequence[Sequence[str]], generation: int, path: str = "SYS") -> Report:
    """A machine by its matrix, as `nvidia-smi topo -m` prints it; `path` is what lies beside NVLinks."""
    n = len(rows)
    gpus = []
    for a in range(n):
        ports: list[Port] = []
        for b in range(n):
            count = int(rows[a][b][2:]) if rows[a][b].startswith("NV") else 0
            ports += [Port(len(ports) + i, NV[generation], "gpu", bus(b)) for i in range(count)]
        gpus.append(gpu(kind, a, ports=tuple(ports)))
    pairs = [Pair(a, b, path if rows[a][b].startswith("NV") else rows[a][b], True) for a, b in combinations(range(n), 2)]
    return Report("580.105.08", 13000, None, tuple(gpus), tuple(pairs))


def switched(kind: str, n: int, links: int, generation: int, fabric: bool = True) -> Report:
    """GPUs behind NVSwitches; from Hopper on the driver tells their fabric."""
    ports = tuple(Port(i, NV[generation], "switch") for i in range(links))
    place = Fabric("completed", 0, None, 0) if fabric else None
    gpus = tuple(gpu(kind, i, ports=ports, fabric=place) for i in range(n))
    pairs = tuple(
        Pair(a, b, "NODE" if a // (n // 2 or 1) == b // (n // 2 or 1) else "SYS", True) for a, b in combinations(range(n), 2)
    )
    return Report("580.105.08", 13000, None, gpus, pairs)


def flat(kind: str, n: int, path: str, read: bool | None = True) -> Report:
    pairs = tuple(Pair(a, b, path, read) for a, b in combinations(range(n), 2))
    return Report("580.105.08", 13000, None, tuple(gpu(kind, i) for i in range(n)), pairs)


def rows(name: str) -> list[list[str]]:
    return [row.split() for row in MATRICES[name].strip().splitlines()]


def host(report: Report | None, about: str, numa: Sequence[int] | None = None, **more: Any) -> Recording:
    """A Linux machine with NVIDIA's driver, and sysfs that agrees with `report`; two NUMA nodes of 16 cores."""
    gpus = report.gpus if report else ()
    files = {
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.105.08  Wed Oct 29 2025\n",
        "/dev/nvidiactl": "",
        **{f"/dev/nvidia{i}": "" for i in range(len(gpus))},
        "/proc/bus/pci/devices": "".join(f"{0x10 + 8 * i:02x}00\t10de2330\n" for i in range(len(gpus))),
    }
    for i, each in enumerate(gpus):
        folder = f"/sys/bus/pci/devices/{each.pci or bus(i)}"
        node = numa[i] if numa else (0 if i < max(len(gpus) // 2, 1) else 1)
        files |= {f"{folder}/vendor": "0x10de\n", f"{folder}/class": "0x030200\n", f"{folder}/numa_node": f"{node}\n"}
        files[f"{folder}/local_cpulist"] = "0-15\n" if node == 0 else "16-31\n"
    drivers = {} if report is None else {READER: report.to_dict()}
    base = Recording(cpu_count=32, affinity=tuple(range(32)), files=files, drivers=drivers, about=f"{about}. Written by hand.")
    return replace(base, **{**more, "files": {**files, **more.get("files", {})}}) if more else base


def without(recording: Recording, *names: str) -> Recording:
    """A machine without some files, by the beginning of their path."""
    return replace(recording, files={path: text for path, text in recording.files.items() if not path.startswith(names)})


MIG = tuple(
    Instance(f"MIG-0000000{i}-0000-0000-0000-00000000000{i}", f"NVIDIA H100 MIG {size}", gib * GIB)
    for i, (size, gib) in enumerate((("3g.40gb", 40), ("2g.20gb", 20), ("1g.10gb", 10)))
)
IN_MIG: Mapping[str, Any] = {"mig": True, "instances": MIG, "ports": ()}


def with_gpu(report: Report, i: int, **more: Any) -> Report:
    gpus = tuple(replace(each, **more) if each.index == i else each for each in report.gpus)
    return replace(report, gpus=gpus)


def cuda_hosts() -> dict[str, Recording]:
    a100x4 = wired("a100", [["X" if a == b else "NV4" for b in range(4)] for a in range(4)], 3)
    hgx = switched("h100", 8, 18, 4)
    six = wired("a6000", rows("a6000-one-bridge"), 3, "NODE")
    down = with_gpu(six, 0, ports=six.gpus[0].ports[:3], down=1)
    down = with_gpu(down, 1, ports=six.gpus[1].ports[:3], down=1)
    mixed = flat("a100-pcie", 3, "NODE")
    mixed = replace(mixed, gpus=(gpu("t4", 0), *mixed.gpus[1:]))
    lost = with_gpu(hgx, 5, trouble=Trouble(15, "GPU is lost"), uuid=None, name=None, ports=())
    busy = with_gpu(with_gpu(hgx, 0, used=30 * GIB, users=(81, 82)), 1, used=GIB, users=(81,))
    busy = with_gpu(with_gpu(busy, 2, used=GIB // 2, users=()), 4, used=75 * GIB, users=())
    vgpu, pairs = flat("a40-vgpu", 2, "SYS", read=False), wired("a100-pcie", rows("a100-pcie-pairs"), 3)
    mask = "CUDA_VISIBLE_DEVICES"
    ready = host(hgx, "HGX H100")
    csv = "index, uuid, name, pci.bus_id, memory.total [MiB], compute_cap, driver_version\n" + "".join(
        f"{i}, {uuid(i)}, NVIDIA A100 80GB PCIe, 00000000:{bus(i)[5:].upper()}, 81920 MiB, 8.0, 580.105.08\n" for i in range(4)
    )
    head = "\t" + "\t".join(f"GPU{i}" for i in range(4)) + "\n"
    topo = head + "".join(f"GPU{i}\t" + "\t".join(row) + "\n" for i, row in enumerate(rows("a100-pcie-pairs")))
    query = "nvidia-smi --query-gpu=index,uuid,name,pci.bus_id,memory.total,compute_cap,driver_version --format=csv"
    wsl = host(flat("2080", 1, "SYS"), "WSL 2 with one GPU", files={"/dev/dxg": "", "/usr/lib/wsl/lib/libnvidia-ml.so.1": ""})
    bare = without(host(flat("l40s", 2, "NODE"), "Two boards and no driver"), "/proc/driver", "/dev/")
    found = {
        "dgx-1v": host(wired("v100", rows("dgx-1v"), 2), "DGX-1V: hybrid cube mesh"),
        "dgx-2": host(switched("v100", 16, 6, 2, fabric=False), "DGX-2: 16 V100 behind NVSwitches"),
        "dgx-a100": host(switched("a100", 8, 12, 3, fabric=False), "DGX A100"),
        "hgx-h100": ready,
        "hgx-h20": host(switched("h20", 8, 18, 4), "HGX H20"),
        "hgx-b200": host(switched("b200", 8, 18, 5), "HGX B200"),
        "gb200-tray": host(switched("gb200", 4, 18, 5), "A tray of GB200 NVL72", machine="aarch64"),
        "gb10": host(flat("gb10", 1, "SYS"), "DGX Spark", machine="aarch64"),
        "p100-8": host(flat("p100", 8, "PIX"), "Eight P100 behind switches"),
        "a100-sxm-mesh": host(a100x4, "Four A100, a mesh without switches", numa=(3, 2, 1, 0)),
        "a100-pcie-pairs": host(pairs, "Four A100 PCIe with two bridges"),
        "3090-bridge": host(wired("3090", [["X", "NV4"], ["NV4", "X"]], 3, "PHB"), "Two RTX 3090 with a bridge", numa=(0, 0)),
        "4090-8": host(flat("4090", 8, "PIX", read=False), "Eight RTX 4090: no P2P although behind one switch"),
        "a6000-link-down": host(down, "Three RTX A6000, a bridge with one link down", numa=(0, 0, 0)),
        "t4": host(flat("t4", 1, "SYS"), "One T4"),
        "mixed": host(mixed, "A T4 before two A100: CUDA's order is not PCI's", numa=(0, 0, 0)),
        "mig": host(with_gpu(with_gpu(hgx, 0, **IN_MIG), 1, **IN_MIG), "Two of eight H100 in MIG mode"),
        "mig-all": host(replace(hgx, gpus=(replace(hgx.gpus[0], **IN_MIG),), pairs=()), "One H100, in MIG mode"),
        "mig-chosen": host(with_gpu(hgx, 0, **IN_MIG), "A mask that takes a MIG instance", env={mask: MIG[1].uuid}),
        "masked": host(hgx, "A mask with another order", env={mask: "6,2,4"}),
        "masked-uuid": host(hgx, "A mask of UUIDs, one by its beginning", env={mask: f"{uuid(3)},GPU-10000001"}),
        "masked-empty": host(hgx, "An empty mask", env={mask: ""}),
        "masked-twice": host(hgx, "A mask that names a GPU twice", env={mask: "1,1"}),
        "masked-cut": host(hgx, "A mask with an entry that names nothing", env={mask: "2,99,3"}),
        "in-use": host(busy, "HGX H100 that others train on: two seen as processes, one, of another container, by its memory"),
        "vgpu": host(replace(vgpu, gpus=tuple(replace(each, virtual=True) for each in vgpu.gpus)), "Two vGPUs of A40"),
        "lost": host(lost, "HGX H100 with a GPU that has fallen off the bus", numa=(0,) * 8),
        "container-hidden": without(ready, "/dev/"),
        "container-two": replace(ready, drivers={READER: replace(hgx, gpus=hgx.gpus[:2], pairs=hgx.pairs[:1]).to_dict()}),
        "no-driver": bare,
        "nouveau": replace(bare, links={f"/sys/bus/pci/devices/{bus(0)}/driver": "../../../bus/pci/drivers/nouveau"}),
        "vfio": replace(bare, links={f"/sys/bus/pci/devices/{bus(0)}/driver": "../../../bus/pci/drivers/vfio-pci"}),
        "no-permission": replace(ready, denied=("/dev/nvidia0",)),
        "driver-mismatch": host(
            Report(trouble=Trouble(18, "Driver/library version mismatch")), "A driver updated, not rebooted"
        ),
        "no-library": host(Report(trouble=Trouble(12, "NVML Shared Library Not Found")), "No libnvidia-ml"),
        "no-fabric": host(with_gpu(hgx, 0, fabric=Fabric("in progress")), "HGX H100 whose fabric manager is not up"),
        "other-torch": host(hgx, "torch for CPUs only", versions={"torch": "2.8.0+cpu"}),
        "smi-only": replace(
            host(pairs, "No nvidia-ml-py"), drivers={}, commands={query: Output(csv), "nvidia-smi topo -m": Output(topo)}
        ),
        "nothing-to-ask": replace(host(pairs, "Neither nvidia-ml-py nor nvidia-smi"), drivers={}),
        "wsl2": without(wsl, "/dev/nvidia", "/proc/driver"),
    }
    abouts = {"container-hidden": "A container without GPUs on HGX H100", "container-two": "A container with two of eight H100"}
    abouts |= {"nouveau": "Driven by nouveau", "vfio": "Handed to virtual machines", "no-permission": "A user outside of video"}
    return {
        name: replace(each, about=f"{abouts[name]}. Written by hand.") if name in abouts else each
        for name, each in found.items()
    }


# AMD


def properties(**facts: int) -> str:
    return "".join(f"{name} {value}\n" for name, value in facts.items())


def kfd(arch: int, edges: Mapping[tuple[int, int], int], n: int, about: str, per: int = 50000, **more: Any) -> Recording:
    """A machine of AMD's: two CPU nodes, n GPU nodes; `edges`: xGMI links of a pair; the others reach each other by PCIe."""
    root, pci = "/sys/class/kfd/kfd/topology/nodes", "/sys/bus/pci/devices"
    files = {f"{root}/{i}/properties": properties(cpu_cores_count=16, simd_count=0) for i in range(2)}
    files |= {"/dev/kfd": "", "/sys/module/amdgpu/version": "6.14.14\n"}
    files["/proc/bus/pci/devices"] = "".join(f"{0x10 + 8 * i:02x}00\t100274a1\n" for i in range(n))
    links = {}
    for i in range(n):
        own, side = f"{root}/{i + 2}", int(i >= max(n // 2, 1))
        facts = {"gfx_target_version": arch, "location_id": (0x10 + 8 * i) << 8, "unique_id": 0xA0000 + i}
        files[f"{own}/properties"] = properties(cpu_cores_count=0, simd_count=304, **facts)
        files[f"{own}/mem_banks/0/properties"] = properties(heap_type=1, size_in_bytes=64 * GIB)
        files[f"{own}/io_links/0/properties"] = properties(
            type=2, node_to=side, weight=20, min_bandwidth=312, max_bandwidth=32000
        )
        for j in (j for j in range(n) if j != i):
            count = edges.get((min(i, j), max(i, j)), 0)
            kind = {"type": 11, "node_to": j + 2, "weight": 15, "min_bandwidth": per, "max_bandwidth": per * count}
            if count:
                files[f"{own}/io_links/{j + 1}/properties"] = properties(**kind)
            else:
                files[f"{own}/p2p_links/{j}/properties"] = properties(type=2, node_to=j + 2, weight=72)
        files[f"{pci}/{bus(i)}/vendor"], files[f"{pci}/{bus(i)}/class"] = "0x1002\n", "0x120000\n"
        files[f"{pci}/{bus(i)}/numa_node"] = f"{side}\n"
        files[f"{pci}/{bus(i)}/local_cpulist"] = "16-31\n" if side else "0-15\n"
        links[f"{pci}/{bus(i)}"] = f"../../../devices/pci0000:{'80' if side else '00'}/0000:0{i}:01.0/{bus(i)}"
    base = Recording(cpu_count=32, affinity=tuple(range(32)), files=files, links=links, about=f"{about}. Written by hand.")
    return replace(base, **more)


def every(n: int, count: int = 1) -> dict[tuple[int, int], int]:
    return dict.fromkeys(combinations(range(n), 2), count)


MI250 = {
    (0, 1): 4,
    (2, 3): 4,
    (4, 5): 4,
    (6, 7): 4,
    (0, 2): 1,
    (1, 3): 1,
    (0, 6): 2,
    (1, 7): 1,
    (2, 4): 2,
    (3, 5): 1,
    (4, 6): 1,
    (5, 7): 1,
}


def rocm_hosts() -> dict[str, Recording]:
    hives = {pair: 1 for pair in every(8) if (pair[0] < 4) == (pair[1] < 4)}
    mi300 = kfd(90402, every(8), 8, "Eight MI300X, all linked to all", per=64000)
    few = kfd(90402, every(2), 2, "Two MI300X", per=64000)
    hidden = {path: text for path, text in mi300.files.items() if "/nodes/" not in path or "/nodes/0/" in path}
    hidden |= {f"/sys/class/kfd/kfd/topology/nodes/{i}/gpu_id": "1\n" for i in range(2, 10)}
    parts = kfd(90402, every(4), 4, "One MI300X in CPX mode")
    one = {
        path: text.replace("unique_id 655361", "unique_id 655360")
        .replace("unique_id 655362", "unique_id 655360")
        .replace("unique_id 655363", "unique_id 655360")
        for path, text in parts.files.items()
    }
    taken = {"/sys/class/kfd/kfd/proc/81/vram_1002": "4096\n", "/sys/class/kfd/kfd/proc/81/vram_1003": "0\n"}
    taken |= {f"/sys/class/kfd/kfd/topology/nodes/{i + 2}/gpu_id": f"{1000 + i}\n" for i in range(8)}
    taken |= {f"/sys/bus/pci/devices/{bus(i)}/mem_info_vram_used": f"{(50 if i == 5 else 1) * GIB}\n" for i in range(8)}
    boards = {path: text for path, text in kfd(100300, {}, 1, "").files.items() if path.startswith(("/sys/bus", "/proc"))}
    return {
        "mi250x-8": kfd(90010, MI250, 8, "Four MI250X: eight dies"),
        "mi210-hives": kfd(90010, hives, 8, "Eight MI210 in two hives"),
        "mi300x-8": mi300,
        "mi300x-cpx": replace(parts, files=one),
        "in-use": replace(
            mi300, files={**mi300.files, **taken}, about="Eight MI300X, two of them used by others. Written by hand."
        ),
        "mi50": kfd(90006, {}, 2, "Two MI50 without a bridge"),
        "rx6800": kfd(100300, {}, 1, "One RX 6800"),
        "masks": replace(
            mi300,
            env={"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "1,0"},
            about="Two masks, one on the other. Written by hand.",
        ),
        "masked-all": replace(few, env={"HIP_VISIBLE_DEVICES": "-1"}, about="A mask that leaves none. Written by hand."),
        "no-permission": replace(few, denied=("/dev/kfd",), about="A user outside of render. Written by hand."),
        "no-node": without(replace(few, about="A container with sysfs and no device nodes. Written by hand."), "/dev/"),
        "container-hidden": replace(mi300, files=hidden, about="A container that was given none of the GPUs. Written by hand."),
        "no-driver": Recording(files=boards, about="A board that amdgpu does not drive. Written by hand."),
        "other-torch": replace(few, versions={"torch": "2.8.0+cu128"}, about="torch for NVIDIA's GPUs. Written by hand."),
    }


def all_hosts() -> dict[str, Recording]:
    return {f"cuda-{name}": each for name, each in cuda_hosts().items()} | {
        f"rocm-{name}": each for name, each in rocm_hosts().items()
    }


if __name__ == "__main__":
    for name, recording in all_hosts().items():
        (HOSTS / name).mkdir(exist_ok=True)
        (HOSTS / name / RECORDING).write_text(recording.to_json(indent=1) + "\n", encoding="utf-8")
