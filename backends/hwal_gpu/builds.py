"""Builds of the frameworks that are installed, by their names and versions: nothing is imported."""

from __future__ import annotations

import re

from hwal.host import Host
from hwal.requirement import pins
from hwal.values import Unfit

MARKS = {"cpu": "CPUs only", "cu": "NVIDIA's GPUs", "rocm": "AMD's GPUs", "xpu": "Intel's GPUs"}
"""What torch's own wheels have behind the + of their version. Another mark, as of a build from source, says nothing."""
TOOLKITS = {
    "cuda": "cu",
    "hip": "rocm",
    "xpu": "xpu",
}  # what torch/version.py has the versions of, None but for one at the most
OF_TENSORFLOW = ("tensorflow", "tensorflow-rocm")  # those that can have GPUs


def unfit(host: Host, mark: str, torch: str, tensorflow: str) -> tuple[Unfit, ...]:
    """The frameworks whose build cannot use the GPUs that torch's builds have `mark` for.

    `torch` and `tensorflow`: how to install builds that can.
    """
    version = (host.version("torch") or "").strip().partition("\n")[0]
    own = built_for(host)
    found = []
    if own is not None and own != mark:
        found.append(Unfit("torch", f"torch {version} was built for {MARKS[own]}", torch))
    slim = (host.version("tensorflow-cpu") or "").strip().partition("\n")[0]
    if slim and not any(host.version(name) for name in OF_TENSORFLOW):
        found.append(Unfit("keras", f"tensorflow-cpu {slim} was built for CPUs only", tensorflow))
    return tuple(found)


def built_for(host: Host) -> str | None:
    """One of MARKS: by torch's mark, by its version file, or by what its wheel asks for; None where none of them tells."""
    version = (host.version("torch") or "").partition("+")[2]
    marked = re.match(r"cpu|cu(?=\d)|rocm|xpu", version)
    if marked:
        return marked[0]
    told = _version_file(host)
    if told:
        return next((mark for name, mark in TOOLKITS.items() if told.get(name)), "cpu")
    return "cu" if not version and toolkit(host) else None


def toolkit(host: Host) -> tuple[int, int] | None:
    """The CUDA that torch is built for, (12, 8), by the same three."""
    marked = re.search(r"\+cu(\d+)(\d)\b", host.version("torch") or "")
    if marked:
        return int(marked[1]), int(marked[2])
    told = _version_file(host)
    if told:
        return _numbers(told.get("cuda") or "")
    return _runtime(host)


def wheel(host: Host) -> tuple[int, int] | None:
    """The torch, (2, 8), whose release PyTorch's own wheel for CUDA is installed; None for others' builds and nightly ones."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.\d+(\+cu\d+)?", (host.version("torch") or "").strip())
    if found is None or not (found[3] or _runtime(host)):
        return None
    return int(found[1]), int(found[2])


def _runtime(host: Host) -> tuple[int, int] | None:
    """The CUDA whose libraries torch's wheel asks for, as those of the package index do."""
    runtimes = (pin for pin in pins(host, "torch") if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?|cuda-toolkit", pin.name))
    return next((_numbers(pin.version) for pin in runtimes), None)


def _version_file(host: Host) -> dict[str, str]:
    """TOOLKITS' names that torch/version.py assigns -> version, "" for None (`cuda: Optional[str] = '12.8'`)."""
    text = host.packaged("torch", "torch/version.py") or ""
    found = re.findall(rf"^({'|'.join(TOOLKITS)})\b[^=\n]*= *(?:'([^'\n]*)'|None) *$", text, re.MULTILINE)
    return dict(found)


def _numbers(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None
