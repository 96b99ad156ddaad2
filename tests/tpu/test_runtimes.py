"""The runtime suite on XLA's CPU platform. Run in XLA's environment."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is in the environment of ci/xla.txt")

from hwal_torch.suite.failures import FailureTests
from hwal_torch.suite.outputs import OutputTests
from hwal_torch.suite.worlds import WorldTests
from hwal_torch.testing import RuntimeSuite as Suite


class TestFourDevices(Suite):
    """tests/tpu/test_memory.py has what is left out of its part on memory."""

    device = "tpu:cpu:4"


class TestOneDevice(WorldTests, FailureTests, OutputTests):
    """Its curves and checkpoints are in test_training; `hwal selftest --device tpu:cpu` runs all."""

    device = "tpu:cpu"
