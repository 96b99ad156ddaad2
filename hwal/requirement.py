"""What wheels ask for (`nvidia-nccl-cu12==2.27.5; platform_system == "Linux"`), read without a library of packaging."""

from __future__ import annotations

import re
from typing import NamedTuple

from hwal.host import Host


class Pin(NamedTuple):
    """A distribution that is asked for by exact version."""

    name: str
    version: str


def pins(host: Host, distribution: str) -> list[Pin]:
    """What an installed distribution asks for by exact version on this machine; extras are asked for by nobody."""
    found = []
    for text in host.requires(distribution):
        pin = re.match(r"([\w.-]+)(?:\[[^\]]*\])?\s*\(?==\s*([\w.]+)", text)
        if pin is not None and _applies(text.partition(";")[2], host):
            found.append(Pin(*pin.groups()))
    return found


def _applies(marker: str, host: Host) -> bool:
    """Whether an environment marker of torch's wheels holds here; one that asks for more than system and machine does not."""
    facts = {"platform_system": {"linux": "Linux", "win32": "Windows", "darwin": "Darwin"}.get(host.system, host.system)}
    facts["platform_machine"] = host.machine
    conditions = [part.strip(" ()") for part in re.split(r"\band\b", marker) if part.strip()]
    for condition in conditions:
        found = re.fullmatch(r"(\w+)\s*==\s*[\"']([^\"']*)[\"']", condition)
        if found is None or facts.get(found[1]) != found[2]:
            return False
    return True
