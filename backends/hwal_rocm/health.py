"""What AMD's library amdsmi tells beyond sysfs: asked by `hwal doctor` alone, where the package of ROCm is installed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hwal.record import Record, dataclass

READER = "hwal_rocm.health:read"
# amdsmi_get_violation_status: what cuts clocks now, by its keys
VIOLATIONS = {
    "active_ppt_pwr": "power",
    "active_socket_thrm": "the temperature of the socket",
    "active_vr_thrm": "the temperature of the voltage regulators",
    "active_hbm_thrm": "the temperature of the memory",
    "active_prochot_thrm": "the processor-hot signal",
}
PENDING = 1  # AmdSmiMemoryPageStatus: the page is retired at the next reset


@dataclass(frozen=True)
class Health(Record):
    """One GPU by its PCI address. What a call did not tell is None.

    Attributes:
        violations: what cuts its clocks now. links: 0 no xGMI error since the last look, 1 one, 2 several.
        pending, retired: pages of memory that wait for a reset to be retired; that are.
    """

    pci: str
    violations: tuple[str, ...] | None = None
    links: int | None = None
    pending: int | None = None
    retired: int | None = None


@dataclass(frozen=True)
class Ward(Record):
    """All GPUs that answer."""

    gpus: tuple[Health, ...] = ()


def read() -> dict[str, Any] | None:
    """A Ward as JSON; None where amdsmi cannot be asked. Never raises."""
    try:
        import amdsmi
    except (ImportError, OSError, KeyError):  # the package looks for its library while it is imported
        return None
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException:
        return None
    try:
        return Ward(tuple(_health(amdsmi, handle) for handle in amdsmi.amdsmi_get_processor_handles())).to_dict()
    except amdsmi.AmdSmiException:
        return None
    finally:
        with suppress(amdsmi.AmdSmiException):
            amdsmi.amdsmi_shut_down()


def _health(amdsmi: Any, handle: Any) -> Health:
    def ask(name: str) -> Any:
        call: Callable[[Any], Any] | None = getattr(amdsmi, f"amdsmi_{name}", None)
        try:
            return None if call is None else call(handle)
        except amdsmi.AmdSmiException:
            return None

    status, pages, links = ask("get_violation_status"), ask("get_gpu_bad_page_info"), ask("gpu_xgmi_error_status")
    listed = pages if isinstance(pages, list) else [] if pages is not None else None  # old versions have a sentence for none
    waiting = None if listed is None else sum(int(page["status"]) == PENDING for page in listed)
    return Health(
        str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower(),
        None if status is None else tuple(why for key, why in VIOLATIONS.items() if status.get(key) is True),
        None if links is None else int(links),
        waiting,
        None if listed is None else len(listed) - (waiting or 0),
    )
