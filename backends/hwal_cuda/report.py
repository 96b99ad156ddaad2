"""What NVML told, as values: the document that hwal_cuda.nvml.read returns and a recorded host keeps."""

from __future__ import annotations

from hwal.record import Record, dataclass

# nvmlReturn_t, as nvml.h numbers them
NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, LOST, MISMATCH, RESET = 4, 9, 12, 13, 15, 18, 16


@dataclass(frozen=True)
class Trouble(Record):
    """A call that failed: NVML's code, and its text."""

    code: int
    text: str


@dataclass(frozen=True)
class Instance(Record):
    """A MIG instance."""

    uuid: str
    name: str | None = None
    memory: int | None = None


@dataclass(frozen=True)
class Port(Record):
    """An NVLink that is up. `speed`: MB/s in one direction. `remote`: gpu, switch or npu. `peer`: the GPU's PCI address."""

    link: int
    speed: int | None = None
    remote: str | None = None
    peer: str | None = None


@dataclass(frozen=True)
class Fabric(Record):
    """A GPU's place in an NVLink fabric: state (not supported, not started, in progress, completed), cluster, clique."""

    state: str
    status: int = 0
    cluster: str | None = None
    clique: int | None = None


@dataclass(frozen=True)
class Gpu(Record):
    """One GPU of NVML's enumeration, which is PCI order and knows no mask. What a call did not tell is None.

    `memory` in bytes, and `used` of it; `users`: ids of the processes that compute there. `capability` is the compute
    capability, (9, 0). `down`: NVLinks that are not up. `virtual`: whether it is a vGPU, a share that a hypervisor gives.
    """

    index: int
    trouble: Trouble | None = None
    uuid: str | None = None
    name: str | None = None
    pci: str | None = None
    memory: int | None = None
    capability: tuple[int, int] | None = None
    mig: bool | None = None
    instances: tuple[Instance, ...] = ()
    ports: tuple[Port, ...] = ()
    down: int = 0
    fabric: Fabric | None = None
    used: int | None = None
    users: tuple[int, ...] | None = None
    virtual: bool | None = None

    @property
    def lost(self) -> str:
        """What is wrong with a GPU that fails: `GPU 5 (0000:38:00.0) has fallen off the bus`."""
        code, text = (0, "") if self.trouble is None else (self.trouble.code, self.trouble.text)
        fate = {LOST: "has fallen off the bus", RESET: "needs a reset"}.get(code, f"does not answer: {text}")
        return f"GPU {self.index}{f' ({self.pci})' if self.pci else ''} {fate}"


@dataclass(frozen=True)
class Pair(Record):
    """Two GPUs by index: class of the PCIe path, and whether each can read the other's memory."""

    a: int
    b: int
    path: str | None = None
    read: bool | None = None


@dataclass(frozen=True)
class Report(Record):
    """All of it. `cuda`: the newest CUDA the driver runs (13000 is 13.0). `trouble`: why there is nothing to tell."""

    driver: str | None = None
    cuda: int | None = None
    trouble: Trouble | None = None
    gpus: tuple[Gpu, ...] = ()
    pairs: tuple[Pair, ...] = ()
