"""How NVIDIA's GPUs are doing, by NVML: asked by `hwal doctor` alone, for these calls take time."""

from __future__ import annotations

from typing import Any

from hwal.record import Record, dataclass
from hwal_cuda.nvml import COMPLETED, fabric_of

READER = "hwal_cuda.health:read"
SLOWDOWN = 194  # NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, in °C


@dataclass(frozen=True)
class Health(Record):
    """One GPU. What a call did not tell is None.

    Attributes:
        throttle: nvmlClocksEventReasons, a set of bits. temperature, slowdown: °C now, and where clocks are cut.
        power, default_power: limits in milliwatts. ecc: (now, after a reset).
        pending, failed: rows of memory wait to be remapped by a reset; remapping has failed.
        generation, width: of PCIe, (now, the most). busy: whether its clocks are up.
        link_errors: NVLink replays and recoveries so far. uncorrected: ECC errors that were not corrected, so far.
        fabric: NVML_GPU_FABRIC_HEALTH_MASK, a set of flags of two bits.
    """

    index: int
    throttle: int | None = None
    temperature: int | None = None
    slowdown: int | None = None
    power: int | None = None
    default_power: int | None = None
    ecc: tuple[int, int] | None = None
    pending: bool | None = None
    failed: bool | None = None
    generation: tuple[int, int] | None = None
    width: tuple[int, int] | None = None
    busy: bool | None = None
    persistence: bool | None = None
    mig: tuple[int, int] | None = None
    link_errors: int | None = None
    uncorrected: int | None = None
    fabric: int | None = None


@dataclass(frozen=True)
class Ward(Record):
    """All GPUs that answer."""

    gpus: tuple[Health, ...] = ()


def read() -> dict[str, Any] | None:
    """A Ward as JSON; None where NVML cannot be asked. Never raises."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return None
    gpus = []
    for index in range(count):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError:
            continue
        gpus.append(_health(pynvml, handle, index))
    pynvml.nvmlShutdown()
    return Ward(tuple(gpus)).to_dict()


def _health(nvml: Any, handle: Any, index: int) -> Health:
    def ask(name: str, *arguments: int) -> Any:
        call = getattr(nvml, f"nvmlDeviceGet{name}", None)  # an older nvidia-ml-py has not all of them
        try:
            return None if call is None else call(handle, *arguments)
        except nvml.NVMLError:
            return None

    def both(first: str, second: str) -> tuple[int, int] | None:
        values = ask(first), ask(second)
        return None if None in values else (int(values[0]), int(values[1]))

    rows, ecc, mig, persistence = ask("RemappedRows"), ask("EccMode"), ask("MigMode"), ask("PersistenceMode")
    throttle = ask("CurrentClocksEventReasons")
    if throttle is None:
        throttle = ask("CurrentClocksThrottleReasons")
    now, slowdown = ask("Temperature", 0), ask("TemperatureThreshold", 1)
    state, retired = ask("PerformanceState"), ask("RetiredPagesPendingStatus")  # boards before Ampere retire pages
    errors = [ask("NvLinkErrorCounter", link, counter) for link in range(18) for counter in (0, 1)]
    told = [error for error in errors if error is not None]
    return Health(
        index,
        throttle=throttle,
        temperature=now,
        slowdown=_slowdown(nvml, handle, now, ask("MarginTemperature")) if slowdown is None else slowdown,
        power=ask("PowerManagementLimit"),
        default_power=ask("PowerManagementDefaultLimit"),
        ecc=None if ecc is None else (int(ecc[0]), int(ecc[1])),
        pending=bool(retired) if rows is None and retired is not None else None if rows is None else bool(rows[2]),
        failed=None if rows is None else bool(rows[3]),
        generation=both("CurrPcieLinkGeneration", "MaxPcieLinkGeneration"),
        width=both("CurrPcieLinkWidth", "MaxPcieLinkWidth"),
        busy=None if state is None else int(state) <= 2,
        persistence=None if persistence is None else bool(persistence),
        mig=None if mig is None else (int(mig[0]), int(mig[1])),
        link_errors=sum(told) if told else None,
        uncorrected=ask("TotalEccErrors", 1, 0),
        fabric=_fabric(nvml, handle),
    )


def _slowdown(nvml: Any, handle: Any, now: int | None, margin: int | None) -> int | None:
    """Where clocks are cut, of GPUs since Ada: told as what is left then of the way to a limit; `margin` is left now."""
    if now is None or margin is None:
        return None
    try:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [SLOWDOWN])
    except nvml.NVMLError:
        return None
    return now + margin - int(value.value.siVal) if value.nvmlReturn == 0 else None


def _fabric(nvml: Any, handle: Any) -> int | None:
    """The health mask, of GPUs that are in a fabric."""
    info = fabric_of(nvml, handle)
    return None if info is None or int(info.state) != COMPLETED else int(info.healthMask)
