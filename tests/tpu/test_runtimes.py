"""The runtime suite on XLA's CPU platform. Run in XLA's environment."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_xla", reason="torch_xla is in the environment of ci/xla.txt")

from hwal_torch.testing import RuntimeSuite as Suite


class TestOneDevice(Suite):
    device = "tpu:cpu"


class TestFourDevices(Suite):
    device = "tpu:cpu:4"
