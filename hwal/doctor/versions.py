"""Installed packages that do not fit each other, and libraries that torch is built with. Nothing is imported.

Sources: the release notes and compatibility tables of PyTorch/XLA (torch_xla X.Y.Z is built for torch X.Y), of Intel Extension
for PyTorch and of oneCCL's bindings (X.Y for torch X.Y; both ended with 2.8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hwal.finding import Finding
from hwal.host import Host
from hwal.requirement import pins

# distribution -> what its use is, for the sentence about what breaks
OF_TORCH = {
    "torch_xla": "TPUs cannot be used",
    "intel-extension-for-pytorch": "importing it fails, or it patches the wrong functions",
    "oneccl-bind-pt": "the ccl backend cannot be loaded",
    "torchvision": "importing it fails at its operators",
    "torchaudio": "importing it fails at its operators",
}
VENDORS = r"nvidia-.+|cuda-toolkit|triton|pytorch-triton-rocm"
OWN_NUMBERS = {"torchvision": lambda minor: (0, minor + 15)}  # torchvision 0.(n + 15) is built for torch 2.n
ENDED = {
    "intel-extension-for-pytorch": "Intel archived it in March 2026; PyTorch itself has its operators for CPUs since 2.9",
    "oneccl-bind-pt": "Intel ended it with 2.8; gloo is PyTorch's own way between CPUs",
}


def versions(host: Host) -> Iterator[Finding]:
    """Findings about torch and what is built for one version of it."""
    torch = host.version("torch")
    numbers = _minor(torch)
    for name, consequence in OF_TORCH.items():
        version = host.version(name)
        if version is None:
            continue
        if numbers is None:
            yield Finding(
                "warning",
                name,
                f"{name} is installed, and torch is not",
                f"{name} {version}",
                "it does nothing by itself",
                f"pip uninstall {name}, or install the torch it is built for",
            )
            continue
        wanted = OWN_NUMBERS[name](numbers[1]) if name in OWN_NUMBERS and numbers[0] == 2 else numbers
        if _minor(version) != wanted:
            want = ".".join(map(str, wanted))
            yield Finding(
                "error",
                name,
                f"{name} is built for another torch",
                f"{name} {version}, torch {torch}",
                consequence,
                f"pip install '{name}=={want}.*', or the torch it was built for",
            )
        if name in ENDED:
            yield Finding(
                "note",
                name,
                f"{name} is no longer maintained",
                f"{name} {version}: {ENDED[name]}",
                "its faults, security's among them, stay",
                f"pip uninstall {name}; hwal needs none of it",
            )


def libraries(host: Host) -> Iterator[Finding]:
    """The vendors' libraries (NCCL, cuDNN …) that torch's own wheel asks for by exact version."""
    for name, wanted in pins(host, "torch"):
        version = host.version(name)
        if version == wanted or not re.fullmatch(VENDORS, name):
            continue
        nccl = name.startswith("nvidia-nccl")
        so = "collectives fail or hang" if nccl else "torch does not start, or a kernel fails while it runs"
        yield Finding(
            "error" if version is None else "warning",
            name,
            f"torch is built with {name} {wanted}",
            f"installed: {version or 'none'}; torch {host.version('torch')} asks for {wanted}",
            so,
            f"pip install {name}=={wanted}, or install torch anew",
        )


def _minor(version: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None
