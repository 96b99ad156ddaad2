"""What the driver tells of the GPUs: NVML's report, or nvidia-smi's where nvidia-ml-py is missing."""

from __future__ import annotations

from hwal.host import Host
from hwal_cuda.nvml import READER
from hwal_cuda.report import Report


def report(host: Host) -> Report | None:
    """The Report; None where there is nothing to ask. Raises RecordError where the answer makes no sense."""
    told = host.driver(READER)
    if told is not None:
        return Report.from_dict(told, "NVML")
    from hwal_cuda.smi import read_smi  # its parsers are for machines without nvidia-ml-py

    return read_smi(host)
