"""Findings about AMD's GPUs: from sysfs, and through a stand-in of amdsmi."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import hwal_rocm
from hwal.doctor import examine
from hwal.finding import Finding
from hwal.host import RecordedHost
from hwal_rocm import health
from hwal_rocm.health import Health, Ward
from tests.backends import gpus

MI300 = gpus.rocm_hosts()["mi300x-8"]
BOARD = f"/sys/bus/pci/devices/{gpus.bus(2)}"


def found(files: dict[str, str] | None = None, ward: Ward | None = None, **more: Any) -> list[Finding]:
    drivers = {health.READER: (ward or Ward()).to_dict()}
    host = RecordedHost(replace(MI300, files={**MI300.files, **(files or {})}, drivers=drivers, **more))
    return list(examine(host, [hwal_rocm.backend.probe(host)], {"rocm": hwal_rocm.backend}))


def test_nothing_is_wrong() -> None:
    well = Health(gpus.bus(2), (), 0, 0, 3)
    hwmon = {"temp1_input": "45000", "temp1_crit": "100000", "power1_cap": "750000000", "power1_cap_default": "750000000"}
    fine = {f"{BOARD}/hwmon/hwmon3/{name}": f"{value}\n" for name, value in hwmon.items()}
    fine |= {f"{BOARD}/current_link_width": "16\n", f"{BOARD}/max_link_width": "16\n", "/proc/sys/kernel/numa_balancing": "0\n"}
    fine |= {f"{BOARD}/ras/umc_err_count": "ue: 0\nce: 9\n", f"{BOARD}/ras/features": "feature mask: 0x2fff\n"}
    assert found() == found(fine, Ward((well,))) == []


@pytest.mark.parametrize(
    ("files", "level", "what"),
    [
        ({"current_link_width": "8", "max_link_width": "16"}, "warning", "PCIe has fewer lanes than it could"),
        ({"ras/umc_err_count": "ue: 2\nce: 9"}, "error", "its memory has had errors"),
        ({"ras/xgmi_wafl_err_count": "ue: 1\nce: 0"}, "error", "its xGMI links have had errors"),
        ({"ras/gfx_err_count": "ue: 1\nce: 0"}, "error", "it has had errors that could not be corrected"),
        ({"hwmon/hwmon3/temp2_input": "97000", "hwmon/hwmon3/temp2_crit": "100000"}, "warning", "it is almost too hot"),
        (
            {"hwmon/hwmon3/power1_cap": "500000000", "hwmon/hwmon3/power1_cap_default": "750000000"},
            "warning",
            "its power cap is below the default",
        ),
        (
            {"gpu_busy_percent": "97", "current_link_speed": "8.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"},
            "warning",
            "PCIe is slower than it could be",
        ),
    ],
)
def test_what_sysfs_tells(files: dict[str, str], level: str, what: str) -> None:
    told = found({f"{BOARD}/{name}": f"{text}\n" for name, text in files.items()})
    assert [(each.level, each.subject, each.what) for each in told] == [(level, "rocm 2", what)]
    assert all((told[0].evidence, told[0].consequence, told[0].remedy))


def test_an_idle_board_may_have_a_low_generation() -> None:
    files = {"gpu_busy_percent": "0", "current_link_speed": "2.5 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
    assert found({f"{BOARD}/{name}": f"{text}\n" for name, text in files.items()}) == []


def test_the_boards_own_bridges_are_what_the_slot_is_wired_to() -> None:
    """Between GPU and bridge there are always sixteen lanes; between bridge and slot fewer."""
    bridge = "/sys/bus/pci/devices/0000:02:01.0"
    narrow = {f"{bridge}/{name}": text for name, text in (("current_link_width", "4\n"), ("max_link_width", "16\n"))}
    board = {f"{bridge}/vendor": "0x1002\n", f"{bridge}/class": "0x060400\n"}
    path = {BOARD: f"../../../devices/pci0000:00/0000:00:01.0/0000:02:01.0/{gpus.bus(2)}"}
    told = found(narrow | board, links={**MI300.links, **path})
    assert [(each.what, each.evidence) for each in told] == [("PCIe has fewer lanes than it could", "x4 of x16")]
    assert found(narrow, links={**MI300.links, **path}) == [], "a bridge of the machine's is no business of the board's"


def test_without_amdsmi_that_is_said() -> None:
    probe = hwal_rocm.backend.probe(RecordedHost(MI300))
    told = list(hwal_rocm.backend.diagnose(RecordedHost(MI300), probe))
    assert [(each.level, each.what) for each in told] == [("note", "how the GPUs are was not asked")]


def test_the_machine() -> None:
    told = found({"/proc/sys/kernel/numa_balancing": "1\n"})
    assert [(each.level, each.what) for each in told] == [("note", "NUMA balancing is on")]
    used = found({"/sys/class/kfd/kfd/proc/81/vram_1002": "9\n", "/sys/class/kfd/kfd/topology/nodes/4/gpu_id": "1002\n"})
    assert [(each.level, each.what, each.evidence) for each in used] == [
        ("note", "GPUs that others use", "2 (1 process, from sysfs)")
    ]


@pytest.mark.parametrize(
    ("change", "level", "what"),
    [
        ({"violations": ("power",)}, "warning", "its clocks are cut"),
        ({"links": 2}, "warning", "its xGMI links have had errors"),
        ({"pending": 1}, "error", "pages of its memory wait to be retired"),
    ],
)
def test_what_amdsmi_tells(change: dict[str, Any], level: str, what: str) -> None:
    told = found(ward=Ward((replace(Health(gpus.bus(2)), **change), Health(gpus.bus(3)))))
    assert [(each.level, each.subject, each.what) for each in told] == [(level, "rocm 2", what)]
    assert "amdsmi" in told[0].evidence and told[0].remedy


# amdsmi itself


class AmdSmiException(Exception):
    pass


def test_each_answer_of_amdsmi_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: str) -> Any:
        raise AmdSmiException("not supported")

    status = {"active_ppt_pwr": True, "active_socket_thrm": False, "active_vr_thrm": "N/A", "active_hbm_thrm": True}
    pages = [{"status": 0}, {"status": 1}, {"status": 1}]
    ended: list[bool] = []
    library = SimpleNamespace(
        AmdSmiException=AmdSmiException,
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: ended.append(True),
        amdsmi_get_processor_handles=lambda: ["0000:C1:00.0", "0000:E1:00.0"],
        amdsmi_get_gpu_device_bdf=lambda handle: handle,
        amdsmi_get_violation_status=lambda handle: status if "C1" in handle else refuse(handle),
        amdsmi_get_gpu_bad_page_info=lambda handle: pages if "C1" in handle else "No bad pages found.",
        amdsmi_gpu_xgmi_error_status=lambda handle: 2 if "C1" in handle else refuse(handle),
    )
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    first = Health("0000:c1:00.0", ("power", "the temperature of the memory"), 2, 2, 1)
    assert Ward.from_dict(health.read()) == Ward((first, Health("0000:e1:00.0", None, None, 0, 0))) and ended == [True]
    del library.amdsmi_get_violation_status, library.amdsmi_gpu_xgmi_error_status
    older = replace(first, violations=None, links=None)
    assert Ward.from_dict(health.read()).gpus[0] == older
    monkeypatch.setattr(library, "amdsmi_init", lambda: refuse(""))
    assert health.read() is None
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert health.read() is None
