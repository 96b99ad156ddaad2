"""Where nvidia-ml-py is missing: how GPUs are doing, from `nvidia-smi -q -x`. Errors of NVLinks are not in it."""

from __future__ import annotations

import re

from hwal.errors import RecordError
from hwal.host import Host
from hwal.markup import Element, parse
from hwal_cuda.health import Health, Ward

QUERY = ("nvidia-smi", "-q", "-x")
PATIENCE = 30.0  # seconds: without persistence mode the driver starts for each call
CUTS = {  # nvmlClocksEventReasons, by how their elements' names end
    "sw_power_cap": 0x04,
    "hw_slowdown": 0x08,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
SWITCH = {"Enabled": True, "Disabled": False, "Yes": True, "No": False}
UNCORRECTED = ("sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable")


def read_smi(host: Host) -> Ward | None:
    """A Ward; None where there is no nvidia-smi, or it says what cannot be read."""
    output = host.run(*QUERY, timeout=PATIENCE)
    if output is None or output.code != 0:
        return None
    try:
        root = parse(output.stdout, "nvidia-smi -q -x")
    except RecordError:
        return None
    gpus = [child for child in root.children if child.name == "gpu"]
    return Ward(tuple(_health(gpu, index) for index, gpu in enumerate(gpus))) if gpus else None


def _health(gpu: Element, index: int) -> Health:
    link, state = "pci/pci_gpu_link_info", _number(gpu, "performance_state")
    rows = ("remapped_rows/remapped_row_pending", "retired_pages/pending_retirement", "retired_pages/pending_blacklist")
    limit = ("gpu_power_readings/current_power_limit", "gpu_power_readings/power_limit", "power_readings/power_limit")
    default = ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit")
    return Health(
        index,
        throttle=_throttle(gpu),
        temperature=_whole(gpu, "temperature/gpu_temp"),
        slowdown=_slowdown(gpu),
        power=_whole(gpu, *limit, times=1000),
        default_power=_whole(gpu, *default, times=1000),
        ecc=_both(_switch(gpu, "ecc_mode/current_ecc"), _switch(gpu, "ecc_mode/pending_ecc")),
        pending=_switch(gpu, *rows),
        failed=_switch(gpu, "remapped_rows/remapped_row_failure"),
        generation=_both(_whole(gpu, f"{link}/pcie_gen/current_link_gen"), _whole(gpu, f"{link}/pcie_gen/max_link_gen")),
        width=_both(_whole(gpu, f"{link}/link_widths/current_link_width"), _whole(gpu, f"{link}/link_widths/max_link_width")),
        busy=None if state is None else state <= 2,
        persistence=_switch(gpu, "persistence_mode"),
        mig=_both(_switch(gpu, "mig_mode/current_mig"), _switch(gpu, "mig_mode/pending_mig")),
        uncorrected=_uncorrected(gpu),
    )


def _number(gpu: Element, *paths: str) -> float | None:
    """The first that is told: `700.00 W`, `16x`, `P0`, `-2 C`."""
    found = (re.fullmatch(r"P?(-?\d+(?:\.\d+)?)(?:x| \w+)?", gpu.find(path) or "") for path in paths)
    return next((float(value[1]) for value in found if value), None)


def _whole(gpu: Element, *paths: str, times: int = 1) -> int | None:
    value = _number(gpu, *paths)
    return None if value is None else round(value * times)


def _switch(gpu: Element, *paths: str) -> bool | None:
    return next((SWITCH[text] for path in paths if (text := gpu.find(path)) in SWITCH), None)


def _both(now: int | None, other: int | None) -> tuple[int, int] | None:
    return None if now is None or other is None else (int(now), int(other))


def _throttle(gpu: Element) -> int | None:
    """The reasons that are active; drivers before 535 called them throttle reasons."""
    for name in ("clocks_event_reason", "clocks_throttle_reason"):
        told = {end: gpu.find(f"{name}s/{name}_{end}") for end in CUTS}
        if any(told.values()):
            return sum(CUTS[end] for end, text in told.items() if text == "Active")
    return None


def _slowdown(gpu: Element) -> int | None:
    """Where clocks are cut: told in °C, or, since Hopper, as what must be left of the way to a limit that is not told."""
    plain = _whole(gpu, "temperature/gpu_temp_slow_threshold")
    now, left = _number(gpu, "temperature/gpu_temp"), _number(gpu, "temperature/gpu_temp_tlimit")
    least = _number(gpu, "temperature/gpu_temp_slow_tlimit_threshold")
    return plain if plain is not None or None in (now, left, least) else round((now or 0) + (left or 0) - (least or 0))


def _uncorrected(gpu: Element) -> int | None:
    """Errors since the driver was loaded, of all memories; before Ampere they were called double-bit errors."""
    for parent in ("ecc_errors/volatile/double_bit", "ecc_errors/volatile"):
        names = ("total",) if parent.endswith("bit") else UNCORRECTED
        counts = [count for name in names if (count := _whole(gpu, f"{parent}/{name}")) is not None]
        if counts:
            return sum(counts)
    return None
