"""All that a backend's own tests need: hwal's suites, and the machines it should know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import hwal_toy
import pytest

from hwal.host import RecordedHost, Recording
from hwal.testing.probes import Expected, ProbeSuite
from hwal_torch.testing import RuntimeSuite


def host(text: str | None) -> RecordedHost:
    return RecordedHost(Recording(env={"TOY_DRIVER": "/toys"}, files={} if text is None else {"/toys": text}))


class TestToyProbe(ProbeSuite):
    backend = hwal_toy.backend
    hosts: ClassVar = {
        "two": (host("red car\nblue car\n"), Expected(devices=({"name": "red car"}, {"id": "toy1"}), links=("TOY",))),
        "none": (host("\n"), Expected(state="blocked", says=("names no device",))),
        "lost": (host(None), Expected(state="blocked", says=("cannot be read",))),
    }


@pytest.fixture(autouse=True, scope="module")
def _driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Three toys on this machine."""
    path = tmp_path_factory.mktemp("toy") / "toys"
    path.write_text("red car\nblue car\ngreen car\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_DRIVER", str(path))
        yield


class TestToyRuntime(RuntimeSuite):
    device = "toy"
