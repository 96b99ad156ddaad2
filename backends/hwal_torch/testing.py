"""The runtime suite: what every torch runtime must keep. Inherit it, with pytest, and name a device:

    class TestMyRuntime(RuntimeSuite):
        device = "mine:3"

Run as it stands (`hwal selftest`) it takes the device that HWAL_DEVICE names. A docstring's first line is the promise; a
test that cannot apply to a device is skipped with the reason. Worlds are real processes.
"""

from __future__ import annotations

from hwal_torch.suite.base import Suite
from hwal_torch.suite.checkpoints import CheckpointTests
from hwal_torch.suite.curves import CurveTests
from hwal_torch.suite.failures import FailureTests
from hwal_torch.suite.hangs import HangTests
from hwal_torch.suite.memory import MemoryTests
from hwal_torch.suite.outputs import OutputTests
from hwal_torch.suite.stops import StopTests
from hwal_torch.suite.strategies import StrategyTests
from hwal_torch.suite.worlds import WorldTests

__all__ = ["RuntimeSuite", "Suite"]


class RuntimeSuite(
    WorldTests, CurveTests, CheckpointTests, StrategyTests, FailureTests, StopTests, HangTests, MemoryTests, OutputTests
):
    """All parts of the suite."""
