"""Which MPI would start ranks: the `mpirun` on PATH against the packages that bring or need one."""

from __future__ import annotations

from collections.abc import Iterator

from hwal.finding import Finding
from hwal.host import Host

KINDS = {"Open MPI": "Open MPI", "OpenRTE": "Open MPI", "Intel(R) MPI": "Intel MPI", "HYDRA": "MPICH", "MPICH": "MPICH"}


def mpi(host: Host) -> Iterator[Finding]:
    """Findings about Intel's MPI of the package index (impi-rt), and about mpi4py."""
    packages = {name: version for name in ("impi-rt", "mpi4py") if (version := host.version(name)) is not None}
    if not packages:
        return
    there = ", ".join(f"{name} {version}" for name, version in packages.items())
    told = host.run("mpirun", "--version")
    if told is None:
        yield Finding(
            "warning" if "impi-rt" in packages else "note",
            "mpi",
            "there is no mpirun",
            f"{there}; no mpirun on PATH",
            "nothing can start several ranks by MPI; hwal train -n and torchrun need none",
            "the bin folder of the environment on PATH (impi-rt), or an MPI of the system (openmpi-bin, mpich)",
        )
        return
    text = told.stdout + told.stderr
    kind = next((kind for mark, kind in KINDS.items() if mark in text), None)
    if "impi-rt" in packages and kind is not None and kind != "Intel MPI":
        yield Finding(
            "warning",
            "mpi",
            "mpirun is of another MPI than the one that is installed beside torch",
            f"{there}; mpirun on PATH is {kind}'s: {text.strip().splitlines()[0]}",
            "each rank takes itself for a world of one, and trains alone",
            "put the bin folder of the environment before the system's on PATH, or uninstall impi-rt",
        )
