"""Tests that compute in this process do so on one thread: they run beside each other, and a pool of threads that is short of
cores waits for its last one at each operation, which makes a tenth of a second half a minute."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
