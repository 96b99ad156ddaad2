"""What oneDNN really ran, by its own account: a native precision is not assumed from the CPU's flags alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from hwal.host import Host
from hwal_cpu.probe import probe

PROGRAM = """
import torch
with torch.autocast("cpu", torch.bfloat16):
    torch.nn.Linear(256, 256)(torch.randn(128, 256))
"""


@pytest.mark.slow
def test_bf16_runs_on_the_unit_that_the_probe_names() -> None:
    unit = probe(Host()).devices[0].native.get("bf16")
    if unit is None:
        pytest.skip("this CPU has no bf16 unit")
    environ = {**os.environ, "ONEDNN_VERBOSE": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=True)
    (kernel,) = {
        line.split(",")[6] for line in done.stdout.splitlines() if re.search(r",exec,cpu,(matmul|inner_product),", line)
    }
    isa = {"AMX-BF16": "amx", "AVX512-BF16": "avx512_core_bf16", "NEON-BF16": "acl|sve"}[unit]
    assert re.search(isa, kernel), f"the probe names {unit}, oneDNN ran {kernel}"
