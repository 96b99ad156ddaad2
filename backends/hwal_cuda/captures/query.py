"""`nvidia-smi -q`, as text and (`-x`) as XML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hwal.markup import Element, parse
from hwal.topology import Device
from hwal.values import Probe
from hwal_cuda.captures.build import address, damaged, known, mebibytes, probe

TEXT, XML = "nvidia-smi -q", "nvidia-smi -q -x"
SECTION = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])$")


def read_xml(lines: list[str], where: str) -> Probe | None:
    """GPUs with name, memory, address; MIG mode and fabric state as notes."""
    text = "\n".join(lines)
    if "<nvidia_smi_log" not in text[:2000]:
        return None
    root = parse(text, where)
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
        parts = sum(child.name == "mig_device" for child in _below(gpu, "mig_devices"))
        devices.append(_device(i, gpu.attributes["id"], facts))
        notes += _notes(i, facts, parts)
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
        parts = sum(line.strip() == "MIG Device" for line in lines[begin:end])
        devices.append(_device(i, bus, facts))
        notes += _notes(i, facts, parts)
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


def _device(place: int, bus: str, facts: Mapping[str, str | None]) -> Device:
    memory = mebibytes(facts["memory"])
    return Device(
        "cuda",
        place,
        name=known(facts["name"]),
        id=known(facts["uuid"]),
        memory_bytes=memory,
        pci=address(bus),
        outer=place,
        sources={"memory_bytes": "text"} if memory else {},
    )


def _notes(place: int, facts: Mapping[str, str | None], parts: int) -> list[str]:
    notes = []
    if known(facts["mig"]) == "Enabled":
        notes.append(f"GPU {place} is in MIG mode, with {parts} instances")
    if (known(facts["fabric"]) or "Completed") not in ("Completed", "Not Started"):
        notes.append(f"GPU {place}: its fabric is {facts['fabric']}: CUDA gives error 802 until it is completed")
    return notes
