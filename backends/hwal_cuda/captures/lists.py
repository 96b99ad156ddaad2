"""Lists of GPUs: `nvidia-smi -L`, `nvidia-smi nvlink -s`, `nvidia-smi --query-gpu=… --format=csv`."""

from __future__ import annotations

import re
from dataclasses import replace

from hwal.topology import Device
from hwal.values import Probe
from hwal_cuda.captures.build import IN_MIG, address, check_numbers, damaged, known, mebibytes, numbered, probe, uuid

GPU = re.compile(r"GPU (\d+): (.+) \(UUID: (GPU-[0-9A-Fa-f-]+)\)$")
MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-\S+)\)$")
PORT = re.compile(r"\s+Link (\d+): (?:([\d.]+) GB/s|<?inactive>?)$", re.IGNORECASE)
LOST = re.compile(r"Unable to determine the device handle for ", re.IGNORECASE)
REMARK = re.compile(r"NVML: |Nvlink queries are not supported|Device does not have or support Nvlink")


def read_gpus(lines: list[str], where: str) -> Probe | None:
    """GPUs with their UUIDs, and below each its MIG instances (-L) or its NVLinks with their speeds (nvlink -s)."""
    first = next((line for line in lines if line.strip()), "")
    if not re.match(r"GPU \d+: ", first) and not LOST.match(first):
        return None
    links = any("link" in line.lower() for line in lines)
    tool = "nvidia-smi nvlink -s" if links else "nvidia-smi -L"
    devices: list[Device] = []
    notes: list[str] = []
    lost: list[str] = []
    ports: dict[int, float] = {}
    instances: list[int] = []
    listed: list[tuple[str | None, dict[int, float], list[int], int]] = []  # name, links, MIG instances, line
    for number, line in enumerate(lines, 1):
        if found := GPU.match(line.rstrip()):
            ports, instances = {}, []
            listed.append((found[2], ports, instances, number))
            devices.append(Device("cuda", len(devices), name=found[2], id=found[3], outer=int(found[1])))
        elif devices and (found := MIG.match(line.rstrip())):
            if found[3] in devices[-1].parts:
                raise damaged(f"the MIG instance {found[3]} for the second time", where, number, tool)
            instances.append(int(found[2]))
            devices[-1] = replace(devices[-1], parts=(*devices[-1].parts, found[3]))
        elif devices and (found := PORT.match(line.rstrip())):
            if int(found[1]) in ports:
                raise damaged(f"link {found[1]} of GPU {devices[-1].outer} for the second time", where, number, tool)
            ports[int(found[1])] = float(found[2] or 0)
            up = tuple(speed * 1e9 for speed in ports.values() if speed)
            devices[-1] = replace(devices[-1], ports=up, sources={"ports": "text"})
        elif not line.strip():
            continue
        elif LOST.match(line):
            lost.append(line.strip())
        elif devices and REMARK.match(line):
            notes.append(f"GPU {devices[-1].outer}: {line.strip()}")
        else:
            raise damaged(f"{line.strip()[:60]!r} is nothing that the tool prints", where, number, tool)
    if not devices:
        raise damaged("no GPU in it that can be reached", where, len(lines), tool)
    check_numbers(devices, [number for *_, number in listed], where, tool, lost=bool(lost))
    for name, found_ports, cut, number in listed:  # links that are down are listed too
        if what := numbered(list(found_ports), "link") or numbered(cut, "MIG device"):
            raise damaged(what, where, number, tool)
        most = max(len(others) for other, others, *_ in listed if other == name)
        if found_ports and len(found_ports) < most:
            raise damaged(f"{len(found_ports)} links listed, {most} of another {name}", where, number, tool)
    return probe(devices, tool, [*lost, *notes, *_down(devices, links), *_cut(devices)])


def _down(devices: list[Device], links: bool) -> list[str]:
    most = max((len(device.ports) for device in devices), default=0)
    fewer = [device for device in devices if links and len(device.ports) < most]
    return [f"GPU {device.outer} has {len(device.ports)} NVLinks up, others have {most}" for device in fewer]


def _cut(devices: list[Device]) -> list[str]:
    return [f"GPU {device.outer} is cut into {len(device.parts)} MIG instances" for device in devices if device.parts]


def read_csv(lines: list[str], where: str) -> Probe | None:
    """A row a GPU; which columns there are is up to who asked."""
    at = next((i for i, line in enumerate(lines) if line.strip()), None)
    if at is None:
        return None
    names = [re.sub(r" \[.*\]$", "", cell.strip()) for cell in lines[at].split(",")]
    if len(names) < 2 or not {"name", "gpu_name", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id"} & set(names):
        return None
    tool = "nvidia-smi --query-gpu=… --format=csv"
    devices: list[Device] = []
    at_line: list[int] = []
    wanted = None
    for number, line in enumerate(lines[at + 1 :], at + 2):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(names):
            raise damaged(f"{len(cells)} cells under a header of {len(names)}", where, number, tool)
        row = {name: known(cell) for name, cell in zip(names, cells, strict=True)}
        wanted = row.get("count") or wanted
        if cells == [cell.strip() for cell in lines[at].split(",")]:
            raise damaged("the header for the second time", where, number, tool)
        try:
            devices.append(_device(row, len(devices)))
        except ValueError as error:
            raise damaged(str(error), where, number, tool) from None
        at_line.append(number)
    if not devices:
        raise damaged("a header, and no GPU below it", where, at + 2, tool)
    check_numbers(devices, at_line, where, tool)
    if wanted not in (None, str(len(devices))) and len(devices) > 1:
        raise damaged(f"{wanted} GPUs are in the machine, {len(devices)} in the file", where, at_line[-1], tool)
    notes = [f"{wanted} GPUs are in the machine, 1 in the file"] if wanted not in (None, str(len(devices))) else []
    mig = [f"GPU {device.index} is in MIG mode" for device in devices if device.parts]
    return probe(devices, tool, [*notes, *mig])


def _device(row: dict[str, str | None], place: int) -> Device:
    """Raises ValueError for a cell that is no value of its column."""
    memory, index, capability = mebibytes(row.get("memory.total")), row.get("index"), row.get("compute_cap")
    bus = row.get("pci.bus_id") or row.get("gpu_bus_id")
    for name, value, is_one in (
        ("PCI address", bus, address(bus)),
        ("number of a GPU", index, (index or "").isdigit()),
        ("compute capability", capability, re.fullmatch(r"\d+\.\d", capability or "")),
    ):
        if value is not None and not is_one:
            raise ValueError(f"{value[:60]!r} is no {name}")
    return Device(
        "cuda",
        place,
        name=row.get("name") or row.get("gpu_name"),
        id=uuid(row.get("uuid") or row.get("gpu_uuid")),
        memory_bytes=memory,
        arch=f"sm_{capability.replace('.', '')}" if capability else None,
        pci=address(bus),
        outer=int(index) if index else None,
        parts=(IN_MIG,) if row.get("mig.mode.current") == "Enabled" else (),
        sources={"memory_bytes": "text"} if memory else {},
    )
