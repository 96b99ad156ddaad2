"""Builds of the frameworks that are installed, by their names and versions: nothing is imported."""

from __future__ import annotations

import re

from hwal.host import Host
from hwal.requirement import pins
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
    own = build[0] if build else "cu" if "+" not in version and toolkit(host) else None
    found = []
    if own is not None and own != mark:
        found.append(Unfit("torch", f"torch {version} was built for {MARKS[own]}", torch))
    slim = (host.version("tensorflow-cpu") or "").strip().partition("\n")[0]
    if slim and not any(host.version(name) for name in OF_TENSORFLOW):
        found.append(Unfit("keras", f"tensorflow-cpu {slim} was built for CPUs only", tensorflow))
    return tuple(found)


def toolkit(host: Host) -> tuple[int, int] | None:
    """The CUDA that torch is built for, (12, 8): by its version's mark, or by the runtime that its wheel asks for."""
    marked = re.search(r"\+cu(\d+)(\d)\b", host.version("torch") or "")
    if marked:
        return int(marked[1]), int(marked[2])
    for name, version in pins(host, "torch"):
        if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?|cuda-toolkit", name):
            major, _, rest = version.partition(".")
            minor = rest.partition(".")[0]
            return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
    return None
