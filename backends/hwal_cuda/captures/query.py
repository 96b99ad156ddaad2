"""`nvidia-smi -q`, as text and (`-x`) as XML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hwal.markup import Element, parse
from hwal.topology import Device
from hwal.values import Probe
from hwal_cuda.captures.build import IN_MIG, address, check_numbers, damaged, known, mebibytes, numbered, probe, uuid

TEXT, XML = "nvidia-smi -q", "nvidia-smi -q -x"
SECTION = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])$")


def read_xml(lines: list[str], where: str) -> Probe | None:
    """GPUs with name, memory, address; MIG mode and fabric state as notes."""
    if not any("<nvidia_smi_log" in line for line in lines[:20]):
        return None
    root = parse("\n".join(lines), where)
    gpus = [child for child in root.children if child.name == "gpu"]
    attached = root.find("attached_gpus") or ""
    if not gpus or (attached.isdigit() and int(attached) != len(gpus)):
        raise damaged(f"{attached or 'no'} attached GPUs, but {len(gpus)} described", where, root.line, XML)
    devices, notes = [], []
    for i, gpu in enumerate(gpus):
        if address(gpu.attributes.get("id")) is None:
            raise damaged("a <gpu> without a PCI address as its id", where, gpu.line, XML)
        facts = {
            "name": gpu.find("product_name"),
            "uuid": gpu.find("uuid"),
            "memory": gpu.find("fb_memory_usage/total"),
            "mig": gpu.find("mig_mode/current_mig"),
            "fabric": gpu.find("fabric/state"),
        }
        if None in (facts["name"], facts["uuid"], facts["memory"]):
            raise damaged("a <gpu> without name, UUID or memory", where, gpu.line, XML)
        below = [child for child in _below(gpu, "mig_devices") if child.name == "mig_device"]
        parts = [Part(*map(child.find, ("index", "gpu_instance_id", "compute_instance_id"))) for child in below]
        if wrong := _wrong(facts, parts):
            raise damaged(wrong, where, gpu.line, XML)
        devices.append(_device(i, gpu.attributes["id"], facts, parts))
        notes += _notes(i, facts, len(parts))
    check_numbers(devices, [gpu.line for gpu in gpus], where, XML)
    return probe(devices, XML, notes)


def _below(element: Element, name: str) -> Iterator[Element]:
    for child in element.children:
        if child.name == name:
            yield from child.children


def read_text(lines: list[str], where: str) -> Probe | None:
    """The same, from the sections of the text."""
    if not any("NVSMI LOG" in line for line in lines[:10]):
        return None
    attached, sections = None, []
    for number, line in enumerate(lines, 1):
        if found := re.match(r"Attached GPUs\s*:\s*(\d+)$", line.rstrip()):
            attached = int(found[1])
        elif found := SECTION.match(line.rstrip()):
            sections.append((found[1], number))
    if not sections or attached != len(sections):
        what = f"{'no' if attached is None else attached} attached GPUs, but {len(sections)} described"
        raise damaged(what, where, len(lines), TEXT)
    devices, notes = [], []
    ends = [number - 1 for _, number in sections[1:]] + [len(lines)]
    for i, ((bus, begin), end) in enumerate(zip(sections, ends, strict=True)):
        values = dict(_values(lines[begin:end]))
        if not {"Product Name", "GPU UUID", "FB Memory Usage/Total"} <= set(values):
            raise damaged(f"the section of GPU {bus} ends before its name, UUID and memory are told", where, end, TEXT)
        facts = {
            "name": values["Product Name"],
            "uuid": values["GPU UUID"],
            "memory": values["FB Memory Usage/Total"],
            "mig": values.get("MIG Mode/Current"),
            "fabric": values.get("Fabric/State"),
        }
        parts = list(_parts(lines[begin:end]))
        if sum(line.lstrip().startswith("GPU Instance ID") for line in lines[begin:end]) != len(parts):
            raise damaged(f"GPU {bus} has instances without the line `MIG Device` above them", where, begin, TEXT)
        if wrong := _wrong(facts, parts):
            raise damaged(wrong, where, begin, TEXT)
        devices.append(_device(i, bus, facts, parts))
        notes += _notes(i, facts, len(parts))
    check_numbers(devices, [number for _, number in sections], where, TEXT)
    return probe(devices, TEXT, notes)


def _values(lines: list[str]) -> Iterator[tuple[str, str]]:
    """`Section/Key` -> value, the first of each name; sections by indentation."""
    seen: set[str] = set()
    path: list[tuple[int, str]] = []
    for line in lines:
        text = line.strip()
        if not text:
            continue
        depth = len(line) - len(line.lstrip())
        while path and path[-1][0] >= depth:
            path.pop()
        name, colon, value = text.partition(" : ")
        if not colon:
            path.append((depth, text.rstrip(":")))
            continue
        key = "/".join([*(part for _, part in path), name.strip()])
        if key not in seen:
            seen.add(key)
            yield key, value.strip()


class Part(NamedTuple):
    """A MIG device as it is told: its number, its GPU instance and its compute instance."""

    number: str | None
    gpu: str | None
    compute: str | None


def _wrong(facts: Mapping[str, str | None], parts: Sequence[Part]) -> str | None:
    """What in the section of a GPU is no value of its kind."""
    for part in parts:
        if not all(value is not None and value.isdigit() for value in part):
            told = ", ".join(f"{name} {value}" for name, value in part._asdict().items())
            return f"a MIG device without the numbers that name it ({told})"
    try:
        mebibytes(facts["memory"])
    except ValueError as error:
        return str(error)
    return numbered([int(part.number or 0) for part in parts], "MIG device")


def _parts(lines: list[str]) -> Iterator[Part]:
    """The MIG devices of a section."""
    for number, line in enumerate(lines):
        if line.strip() == "MIG Device":
            told = dict(_values(lines[number + 1 : number + 4]))
            yield Part(told.get("Index"), told.get("GPU Instance ID"), told.get("Compute Instance ID"))


def _device(place: int, bus: str, facts: Mapping[str, str | None], parts: Sequence[Part]) -> Device:
    """`parts` by the name that CUDA_VISIBLE_DEVICES takes for them: MIG-<GPU's UUID>/<GPU instance>/<compute instance>."""
    memory = mebibytes(facts["memory"])
    in_mig, own = known(facts["mig"]) == "Enabled", uuid(facts["uuid"])
    return Device(
        "cuda",
        place,
        name=known(facts["name"]),
        id=own,
        memory_bytes=memory,
        pci=address(bus),
        outer=place,
        parts=tuple(f"MIG-{own}/{part.gpu}/{part.compute}" for part in parts if own) or ((IN_MIG,) if in_mig else ()),
        sources={"memory_bytes": "text"} if memory else {},
    )


def _notes(place: int, facts: Mapping[str, str | None], parts: int) -> list[str]:
    notes = []
    if known(facts["mig"]) == "Enabled":
        notes.append(f"GPU {place} is in MIG mode, with {parts} instances")
    if (known(facts["fabric"]) or "Completed") not in ("Completed", "Not Started"):
        notes.append(f"GPU {place}: its fabric is {facts['fabric']}: CUDA gives error 802 until it is completed")
    return notes
