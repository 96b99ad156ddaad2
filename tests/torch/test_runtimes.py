"""The runtime suite over the backends that are here."""

from hwal_torch.suite.failures import FailureTests
from hwal_torch.suite.outputs import OutputTests
from hwal_torch.suite.worlds import WorldTests
from hwal_torch.testing import RuntimeSuite as Suite


class TestNullRuntime(WorldTests, FailureTests, OutputTests):
    """null computes by the code and on the cores of cpu: of the suite, the parts that look at devices."""

    device = "null:4"


class TestCpuRuntime(Suite):
    device = "cpu"
