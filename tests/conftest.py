"""What all tests share: an environment without hwal's variables or the hub, and hypothesis profiles."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("here", deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", parent=settings.get_profile("here"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "here"))

LAUNCHERS = ("HWAL_", "SLURM_", "OMPI_", "PMI_", "MPI_", "TORCHELASTIC_")
KERAS = (Path(__file__).parent / "keras", Path(__file__).parent / "rehearse" / "test_keras_steps.py")
WORLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The tests of Keras are all slow; where none of those is asked for, TensorFlow's seconds of importing are saved."""
    return True if config.option.markexpr == "not slow" and collection_path in KERAS else None


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test sets what it needs; what the person at the terminal has set must not change its outcome."""
    for name in list(os.environ):
        if name.startswith(LAUNCHERS) or name in WORLD:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session", autouse=True)
def hangups_are_noticed() -> None:
    """Under nohup SIGHUP is ignored, here and in all that the tests start."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
