"""Findings about NVIDIA's GPUs where nvidia-ml-py is missing and nvidia-smi is asked in its place."""

from __future__ import annotations

from dataclasses import replace

import pytest

import hwal_cuda
from hwal.finding import Finding
from hwal.host import Output, RecordedHost
from tests.backends import gpus

RECORDING = gpus.cuda_hosts()["smi-only"]
SMI = """<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd"><nvidia_smi_log>{gpus}</nvidia_smi_log>"""
GPU = """<gpu id="00000000:10:00.0"><persistence_mode>Enabled</persistence_mode>
<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
<pci><pci_gpu_link_info>
<pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>5</current_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths>
</pci_gpu_link_info></pci><performance_state>P0</performance_state>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
<clocks_event_reason_sw_power_cap>Not Active</clocks_event_reason_sw_power_cap></clocks_event_reasons>
<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
<ecc_errors><volatile><sram_uncorrectable>0</sram_uncorrectable><dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_pending>No</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
<temperature><gpu_temp>29 C</gpu_temp><gpu_temp_tlimit>58 C</gpu_temp_tlimit>
<gpu_temp_slow_tlimit_threshold>-2 C</gpu_temp_slow_tlimit_threshold></temperature>
<gpu_power_readings><current_power_limit>700.00 W</current_power_limit><default_power_limit>700.00 W</default_power_limit>
</gpu_power_readings></gpu>"""


def by_smi(*changes: tuple[str, str], output: str | None = None) -> list[Finding]:
    """Findings on a machine without nvidia-ml-py, whose second GPU is not as the first."""
    other = GPU
    for old, new in changes:
        assert old in other
        other = other.replace(old, new)
    text = SMI.format(gpus=GPU + other + GPU + GPU) if output is None else output
    host = RecordedHost(replace(RECORDING, commands={**RECORDING.commands, "nvidia-smi -q -x": Output(text)}))
    return list(hwal_cuda.backend.diagnose(host, hwal_cuda.backend.probe(host)))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ((), None),
        ((("power_cap>Not ", "power_cap>"),), "clocks are cut by the power cap"),
        ((("event_reason", "throttle_reason"), ("power_cap>Not ", "power_cap>")), "clocks are cut by the power cap"),  # 530
        ((("29 C", "85 C"), ("58 C", "2 C")), "it is almost too hot"),
        (
            (
                ("29 C", "85 C"),
                ("tlimit", "x"),
                ("<gpu_temp_slow_x_threshold>-2", "<gpu_temp_slow_threshold>90"),
                ("slow_x_threshold>", "slow_threshold>"),
            ),
            "it is almost too hot",
        ),
        ((("current_power_limit>700.00", "current_power_limit>500.00"),), "its power cap is below the default"),
        ((("current_ecc>Enabled", "current_ecc>Disabled"),), "a change of ECC waits for a reset"),
        ((("dram_uncorrectable>0", "dram_uncorrectable>3"),), "its memory has had errors"),
        (
            (("<dram_uncorrectable>0</dram_uncorrectable>", "<sram_uncorrectable_parity>1</sram_uncorrectable_parity>"),),
            "its memory has had errors",
        ),
        ((("row_pending>No", "row_pending>Yes"),), "rows of its memory wait to be remapped"),
        ((("row_failure>No", "row_failure>Yes"),), "rows of its memory cannot be remapped any more"),
        ((("current_link_width>16x", "current_link_width>8x"),), "PCIe has fewer lanes than it could"),
        ((("current_link_gen>5", "current_link_gen>4"),), "PCIe is slower than it could be"),
        ((("current_link_gen>5", "current_link_gen>1"), ("P0", "P8")), None),
        ((("persistence_mode>Enabled", "persistence_mode>Disabled"),), "persistence mode is off"),
        ((("pending_mig>Disabled", "pending_mig>Enabled"),), "a change of MIG mode waits for a reset"),
        (tuple((value, ">N/A<") for value in (">29 C<", ">700.00 W<", ">16x<", ">P0<", ">No<", ">0<")), None),
    ],
)
def test_nvidia_smi_in_nvmls_place(changes: tuple[tuple[str, str], ...], what: str | None) -> None:
    findings = by_smi(*changes)
    assert [finding.what for finding in findings] == ([] if what is None else [what])
    assert all(finding.subject in ("cuda 1", "cuda") for finding in findings)


@pytest.mark.parametrize("output", ["", "<nvidia_smi_log/>", "<nvidia_smi_log><gpu>", "NVIDIA-SMI has failed"])
def test_nvidia_smi_that_makes_no_sense(output: str) -> None:
    assert [finding.what for finding in by_smi(output=output)] == ["how the GPUs are was not asked"]
