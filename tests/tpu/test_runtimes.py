"""The runtime suite on XLA's CPU platform, all but its part on memory: XLA frees late. Run in XLA's environment."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is in the environment of ci/xla.txt")

from hwal_torch.suite.checkpoints import CheckpointTests
from hwal_torch.suite.curves import CurveTests
from hwal_torch.suite.failures import FailureTests
from hwal_torch.suite.hangs import HangTests
from hwal_torch.suite.outputs import OutputTests
from hwal_torch.suite.stops import StopTests
from hwal_torch.suite.strategies import StrategyTests
from hwal_torch.suite.worlds import WorldTests


class Parts(WorldTests, CurveTests, CheckpointTests, StrategyTests, FailureTests, StopTests, HangTests, OutputTests):
    """tests/tpu/test_memory.py has the rest."""


class TestOneDevice(Parts):
    device = "tpu:cpu"


class TestFourDevices(Parts):
    device = "tpu:cpu:4"
