"""Asking NVML, NVIDIA's management library, through nvidia-ml-py. The one place that loads the driver's library.

A call that an old driver does not have, or that a GPU does not support, leaves its figure unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, TypeVar

from hwal_cuda.report import Fabric, Gpu, Instance, Pair, Port, Report, Trouble

READER = "hwal_cuda.nvml:read"

T = TypeVar("T")

PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}  # nvmlGpuTopologyLevel_t; 0: on the same board
REMOTES = {0: "gpu", 1: "npu", 2: "switch"}  # nvmlIntNvLinkDeviceType_t
COMPLETED = 3
STATES = {0: "not supported", 1: "not started", 2: "in progress", COMPLETED: "completed"}
READ, OK, UNKNOWN = 0, 0, 6  # nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t; nvidia-ml-py has the former as a tuple
VGPU = 2  # nvmlGpuVirtualizationMode_t; 1 is a board that is passed through whole
LINKS = 18  # at the most, on Hopper and Blackwell
SPEED = 164  # NVML_FI_DEV_NVLINK_GET_SPEED: MB/s of the link that the scope names
SPEED_OF_ALL = 90  # NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, for drivers that do not know the former


def read() -> dict[str, Any] | None:
    """A Report as JSON; None where nvidia-ml-py is not installed. Never raises."""
    try:
        import pynvml
    except ImportError:
        return None
    return _report(pynvml).to_dict()


def _report(nvml: Any) -> Report:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Report(trouble=_trouble(error))
    try:
        driver = _ask(nvml, nvml.nvmlSystemGetDriverVersion)
        cuda = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
        count = nvml.nvmlDeviceGetCount()
        handles: dict[int, Any] = {}
        gpus = tuple(_gpu(nvml, index, handles) for index in range(count))
        pairs = tuple(_pair(nvml, handles, a, b) for a, b in combinations(sorted(handles), 2))
        return Report(driver and _text(driver), cuda, None, gpus, pairs)
    except nvml.NVMLError as error:
        return Report(trouble=_trouble(error))
    finally:
        _ask(nvml, nvml.nvmlShutdown)


def _trouble(error: Any) -> Trouble:
    return Trouble(int(error.value), str(error))


def _ask(nvml: Any, call: Callable[..., T], *arguments: Any) -> T | None:
    """The answer of a call, None where it fails."""
    try:
        return call(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _gpu(nvml: Any, index: int, handles: dict[int, Any]) -> Gpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError as error:
        return Gpu(index, _trouble(error))
    handles[index] = handle
    name = _ask(nvml, nvml.nvmlDeviceGetName, handle)
    pci = _ask(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = _ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    mig = _ask(nvml, nvml.nvmlDeviceGetMigMode, handle)
    in_mig = None if mig is None else bool(mig[0])
    virtual = getattr(nvml, "nvmlDeviceGetVirtualizationMode", None)  # an older nvidia-ml-py has it not
    mode = None if virtual is None else _ask(nvml, virtual, handle)
    ports, down = ((), 0) if in_mig else _ports(nvml, handle)
    return Gpu(
        index,
        None,
        uuid,
        None if name is None else _text(name),
        None if pci is None else _address(_text(pci.busId)),
        int(memory.total) if memory is not None and memory.total else None,
        (int(capability[0]), int(capability[1])) if capability else None,
        in_mig,
        tuple(_instances(nvml, handle)) if in_mig else (),
        ports,
        down,
        _fabric(nvml, handle),
        int(memory.used) if memory is not None and memory.total else None,
        None if in_mig else _users(nvml, handle),
        None if mode is None else int(mode) == VGPU,
    )


def _users(nvml: Any, handle: Any) -> tuple[int, ...] | None:
    """Processes that compute on the GPU. Those of other containers are not among them; what they take of its memory is."""
    running = _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return None if running is None else tuple(int(process.pid) for process in running)


def _address(bus: str) -> str:
    """`00000000:4A:00.0` as the kernel writes it."""
    domain, _, rest = bus.strip().lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}"


def _instances(nvml: Any, handle: Any) -> list[Instance]:
    found = []
    for i in range(_ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = _ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, i)
        uuid = part and _ask(nvml, nvml.nvmlDeviceGetUUID, part)
        if part and uuid:
            name, memory = _ask(nvml, nvml.nvmlDeviceGetName, part), _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, part)
            found.append(Instance(_text(uuid), name and _text(name), int(memory.total) if memory and memory.total else None))
    return found


def _ports(nvml: Any, handle: Any) -> tuple[tuple[Port, ...], int]:
    """NVLinks that are up, and how many are not."""
    up, down = [], 0
    for link in range(LINKS):
        state = _ask(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:  # there are no more
            break
        if state:
            up.append(link)
        else:
            down += 1
    speeds = _speeds(nvml, handle, up)
    ports = []
    for link in up:
        kind = _ask(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        remote = None if kind is None else REMOTES.get(int(kind))
        # which switch does not matter
        peer = None if remote == "switch" else _ask(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        ports.append(Port(link, speeds.get(link), remote, None if peer is None else _address(_text(peer.busId))))
    return tuple(ports), down


def _speeds(nvml: Any, handle: Any, up: list[int]) -> dict[int, int]:
    """MB/s by link, in one call."""
    if not up:
        return {}
    asked = [SPEED_OF_ALL, *((SPEED, link) for link in up)]
    values = _ask(nvml, nvml.nvmlDeviceGetFieldValues, handle, asked)
    if values is None:
        return {}
    told = [int(value.value.uiVal) if value.nvmlReturn == 0 and value.value.uiVal else None for value in values]
    return {link: speed for link, own in zip(up, told[1:], strict=True) if (speed := own or told[0]) is not None}


def fabric_of(nvml: Any, handle: Any) -> Any:
    """NVML's c_nvmlGpuFabricInfo_v2_t; None where library or driver have none."""
    kind = getattr(nvml, "c_nvmlGpuFabricInfo_v2_t", None)
    if kind is None:
        return None
    info = kind()
    info.version = nvml.nvmlGpuFabricInfo_v2
    try:
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, nvml.byref(info))
    except nvml.NVMLError:
        return None
    return info


def _fabric(nvml: Any, handle: Any) -> Fabric | None:
    info = fabric_of(nvml, handle)
    if info is None:
        return None
    state = STATES.get(int(info.state), "unknown")
    cluster = bytes(value & 0xFF for value in info.clusterUuid).hex()
    clique = int(info.cliqueId) if state == "completed" else None  # 0 is a clique like any other
    return Fabric(state, int(info.status), cluster if cluster.strip("0") else None, clique)


def _pair(nvml: Any, handles: dict[int, Any], a: int, b: int) -> Pair:
    level = _ask(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, handles[a], handles[b])
    there = _ask(nvml, nvml.nvmlDeviceGetP2PStatus, handles[a], handles[b], READ)
    back = _ask(nvml, nvml.nvmlDeviceGetP2PStatus, handles[b], handles[a], READ)
    told = {there, back}
    read = None if told & {None, UNKNOWN} else told == {OK}
    return Pair(a, b, None if level is None else PATHS.get(int(level)), read)
