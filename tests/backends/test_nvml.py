"""hwal's questions to NVML, through the real nvidia-ml-py, of a library that is built here and tells what a machine would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwal_cuda.health import Health, Ward
from hwal_cuda.report import Fabric, Report, Trouble
from tests.backends import gpus
from tests.doubles import nvml

pytest.importorskip("pynvml", reason="nvidia-ml-py is in the extra cuda")
if shutil.which("gcc") is None:
    pytest.skip("gcc builds the library", allow_module_level=True)

PROGRAM = "import json; from hwal_cuda.nvml import read; print(json.dumps(read()))"
MACHINES = {name: host.drivers[gpus.READER] for name, host in gpus.cuda_hosts().items() if gpus.READER in host.drivers}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    nvml.build(folder)
    return folder


def ask(library: Path, report: Report, *more: str) -> Report:
    """What hwal reads where the library tells `report`, and some lines more."""
    return Report.from_dict(run(library, report, more, PROGRAM))


def run(library: Path, report: Report, more: Iterable[str], program: str) -> Any:
    told = library / f"told-{os.getpid()}.txt"
    told.write_text("\n".join([*more, *nvml.lines(report)]) + "\n", encoding="utf-8")
    environ = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_STUB": str(told)}
    environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


HEALTHY = {"throttle": 1, "temperature": 41, "slowdown": 90, "power": 700000, "default_power": 700000, "state": 0}
HEALTHY |= {"persistence": 1, "generation": 5, "max_generation": 5, "width": 16, "max_width": 16}


def test_health_arrives(library: Path) -> None:
    told = gpus.switched("h100", 2, 18, 4)
    sick = HEALTHY | {"throttle": 0x44, "temperature": 88, "state": 8, "width": 8, "replays": 3}
    lines = [f"gpu.{i}.{name} {value}" for i, facts in enumerate((HEALTHY, sick)) for name, value in facts.items()]
    lines += ["gpu.0.uncorrected 0", "gpu.1.uncorrected 2", "gpu.1.health 0x11"]
    lines += ["gpu.0.ecc 1 1", "gpu.0.rows 0 0", "gpu.1.ecc 1 0", "gpu.1.rows 1 0"]
    program = "import json; from hwal_cuda.health import read; print(json.dumps(read()))"
    ward = Ward.from_dict(run(library, told, lines, program))
    well = Health(0, 1, 41, 90, 700000, 700000, (1, 1), False, False, (5, 5), (16, 16), True, True, None, 0, 0, 0)
    assert ward.gpus[0] == well
    assert ward.gpus[1] == replace(
        well,
        index=1,
        throttle=0x44,
        temperature=88,
        ecc=(1, 0),
        pending=True,
        width=(8, 16),
        busy=False,
        link_errors=54,
        uncorrected=2,
        fabric=0x11,
    )


def test_where_clocks_are_cut_by_what_is_left(library: Path) -> None:
    """GPUs since Ada: 58 °C are left at 29 °C, and at -2 °C clocks are cut."""
    program = "import json; from hwal_cuda.health import read; print(json.dumps(read()))"
    lines = [f"gpu.{i}.{line}" for i in range(3) for line in ("temperature 29", "margin 58", "slowdown_margin -2")]
    lines = [line for line in lines if line not in ("gpu.1.margin 58", "gpu.2.slowdown_margin -2")]
    ward = Ward.from_dict(run(library, gpus.flat("h100", 3, "SYS"), lines, program))
    assert [(health.temperature, health.slowdown) for health in ward.gpus] == [(29, 89), (29, None), (29, None)]


def test_boards_that_retire_pages(library: Path) -> None:
    program = "import json; from hwal_cuda.health import read; print(json.dumps(read()))"
    ward = Ward.from_dict(run(library, gpus.flat("t4", 2, "SYS"), ["gpu.0.retired 1", "gpu.1.retired 0"], program))
    assert [(health.pending, health.failed, health.fabric) for health in ward.gpus] == [(True, None, None), (False, None, None)]


def test_what_an_older_package_lacks_is_not_known(library: Path) -> None:
    program = (
        "import json, pynvml; del pynvml.nvmlDeviceGetPersistenceMode, pynvml.nvmlDeviceGetCurrentClocksEventReasons\n"
        "from hwal_cuda.health import read; print(json.dumps(read()))"
    )
    lines = [f"gpu.0.{name} {value}" for name, value in HEALTHY.items()]
    (health,) = Ward.from_dict(run(library, gpus.flat("t4", 1, "SYS"), lines, program)).gpus
    assert health.persistence is None and health.temperature == HEALTHY["temperature"]


def as_told(report: Report) -> Report:
    """What of a report the driver's calls can tell: a lost GPU's address is not among it; what is used of memory always is."""
    lost = [gpu.index for gpu in report.gpus if gpu.trouble]
    return replace(
        report,
        gpus=tuple(
            replace(gpu, pci=None, memory=None, capability=None, fabric=None)
            if gpu.trouble
            else replace(gpu, used=gpu.used or 0)
            for gpu in report.gpus
        ),
        pairs=tuple(pair for pair in report.pairs if pair.a not in lost and pair.b not in lost),
    )


@pytest.mark.parametrize(
    "name", ["dgx-1v", "dgx-2", "hgx-h100", "a6000-link-down", "4090-8", "mig", "lost", "no-fabric", "mixed", "in-use", "vgpu"]
)
def test_each_answer_arrives(library: Path, name: str) -> None:
    told = Report.from_dict(MACHINES[name])
    assert ask(library, told) == as_told(told)


def test_failing_calls_leave_figures_unknown(library: Path) -> None:
    told = gpus.switched("h100", 2, 18, 4)
    calls = (
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetFieldValues",
    )
    got = ask(library, told, *(f"fail.{call} 3" for call in calls), "fail.nvmlSystemGetDriverVersion 999")
    assert [(gpu.memory, gpu.capability, gpu.pci) for gpu in got.gpus] == [(None, None, None)] * 2
    assert {port.speed for gpu in got.gpus for port in gpu.ports} == {None}
    assert got.driver is None and got.gpus[0].uuid == told.gpus[0].uuid


def test_speeds_as_older_drivers_tell_them(library: Path) -> None:
    told = gpus.wired("v100", gpus.rows("dgx-1v"), 2)
    got = ask(library, told, "old-fields 1", "speed-of-all 25781")
    assert got == as_told(told)


def test_a_driver_that_lacks_functions(tmp_path: Path) -> None:
    nvml.build(tmp_path, "nvmlDeviceGetP2PStatus", "nvmlDeviceGetGpuFabricInfoV")
    told = gpus.switched("h100", 2, 18, 4)
    got = ask(tmp_path, told)
    assert [gpu.fabric for gpu in got.gpus] == [None, None]
    assert [pair.read for pair in got.pairs] == [None]


@pytest.mark.parametrize(("code", "text"), [(18, "version mismatch"), (9, "Not Loaded"), (4, "Permission")])
def test_what_stands_in_the_way(library: Path, code: int, text: str) -> None:
    got = ask(library, Report(trouble=Trouble(code, "")))
    assert got.trouble is not None and got.trouble.code == code and text in got.trouble.text


def test_a_clique_of_a_cluster(library: Path) -> None:
    told = gpus.switched("gb200", 4, 18, 5)
    place = Fabric("completed", 0, "ab" + "00" * 15, 3)
    told = replace(told, gpus=tuple(replace(gpu, fabric=place) for gpu in told.gpus))
    assert ask(library, told) == as_told(told)


def test_no_library_at_all(tmp_path: Path) -> None:
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=True)
    trouble = json.loads(done.stdout)["trouble"]
    assert trouble is None or trouble["code"] in (9, 12), "this machine has a driver, or none"
