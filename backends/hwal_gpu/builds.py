"""Builds of the frameworks that are installed, by their names and versions: nothing is imported."""

from __future__ import annotations

import re

from hwal.host import Host
from hwal.values import Unfit

MARKS = {"cpu": "CPUs only", "cu": "NVIDIA's GPUs", "rocm": "AMD's GPUs", "xpu": "Intel's GPUs"}
"""What torch's own wheels have behind the + of their version. Another mark, as of a build from source, says nothing."""
OF_TENSORFLOW = ("tensorflow", "tensorflow-rocm")  # those that can have GPUs


def unfit(host: Host, mark: str, torch: str, tensorflow: str) -> tuple[Unfit, ...]:
    """The frameworks whose build cannot use the GPUs that torch's builds have `mark` for.

    `torch` and `tensorflow`: how to install builds that can.
    """
    version = (host.version("torch") or "").strip().partition("\n")[0]
    build = re.match(r"cpu|cu(?=\d)|rocm|xpu", version.partition("+")[2])
    found = []
    if build is not None and build[0] != mark:
        found.append(Unfit("torch", f"torch {version} was built for {MARKS[build[0]]}", torch))
    slim = (host.version("tensorflow-cpu") or "").strip().partition("\n")[0]
    if slim and not any(host.version(name) for name in OF_TENSORFLOW):
        found.append(Unfit("keras", f"tensorflow-cpu {slim} was built for CPUs only", tensorflow))
    return tuple(found)
