"""The runtime suite over the backends that are here."""

from hwal_torch.testing import RuntimeSuite as Suite


class TestNullRuntime(Suite):
    device = "null:4"


class TestCpuRuntime(Suite):
    device = "cpu"
