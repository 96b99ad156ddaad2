"""Where nvidia-ml-py is missing: the same from nvidia-smi's text, which is slower and tells less."""

from __future__ import annotations

import re
from dataclasses import replace

from hwal.errors import RecordError
from hwal.host import Host
from hwal.paste import tidy
from hwal_cuda.captures import lists, matrix
from hwal_cuda.report import DRIVER_NOT_LOADED, MISMATCH, Gpu, Pair, Port, Report, Trouble

QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,pci.bus_id,memory.total,compute_cap,driver_version", "--format=csv")
TOPOLOGY = ("nvidia-smi", "topo", "-m")


def read_smi(host: Host) -> Report | None:
    """A Report; None where there is no nvidia-smi, or it says what cannot be read."""
    output = host.run(*QUERY)
    if output is None:
        return None
    if output.code != 0:
        text = (output.stdout + output.stderr).strip()
        code = MISMATCH if "version mismatch" in text else DRIVER_NOT_LOADED if "communicate with the" in text else 999
        return Report(trouble=Trouble(code, text.splitlines()[0][:120] if text else "nvidia-smi fails"))
    try:
        listed = lists.read_csv(output.stdout.splitlines(), "nvidia-smi")
        if listed is None:
            return None
        topology = host.run(*TOPOLOGY)
        wired = (
            matrix.read(tidy(topology.stdout).splitlines(), "nvidia-smi topo -m") if topology and topology.code == 0 else None
        )
    except RecordError:
        return None
    gpus = [
        Gpu(i, None, device.id, device.name, device.pci, device.memory_bytes, _capability(device.arch))
        for i, device in enumerate(listed.devices)
    ]
    pairs = []
    ports: dict[int, list[Port]] = {}
    if wired is not None and len(wired.devices) == len(gpus):
        for link in wired.links:
            pairs.append(Pair(link.a, link.b, None if link.count else link.class_ or None))
            for here, there in ((link.a, link.b), (link.b, link.a)):
                known = ports.setdefault(here, [])
                known += [Port(len(known) + i, None, "gpu", gpus[there].pci) for i in range(link.count or 0)]
    found = [replace(gpu, ports=tuple(ports.get(gpu.index, ()))) for gpu in gpus]
    driver = re.search(r", (\d{3}\.[\d.]+)\s*$", output.stdout.strip().splitlines()[-1])
    return Report(driver[1] if driver else None, None, None, tuple(found), tuple(pairs))


def _capability(arch: str | None) -> tuple[int, int] | None:
    digits = (arch or "").removeprefix("sm_")
    return (int(digits[:-1]), int(digits[-1])) if digits.isdigit() and len(digits) > 1 else None
