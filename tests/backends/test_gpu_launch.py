"""What a run on each recorded GPU machine is: devices by rank, precision, cores, and the mask each rank is given.

`launches.txt` holds them as they are; `python -m tests.backends.test_gpu_launch` writes it anew, to be looked through.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hwal.choose import choose
from hwal.errors import DeviceError
from hwal.host import RecordedHost
from hwal.plan import make_plan
from hwal.registry import Registry
from hwal.testing.hosts import load_all
from hwal.values import Decision, Request, Target, World
from tests.backends import gpus

SNAPSHOT = Path(__file__).with_name("launches.txt")


def launches() -> Iterator[str]:
    """A few lines for each machine."""
    for name, host in load_all(gpus.HOSTS).items():
        if name.startswith(("cuda-", "rocm-")):
            yield from _launch(name, host)


def _launch(name: str, host: RecordedHost) -> Iterator[str]:
    backend = Registry(host).load(name.partition("-")[0])
    try:
        choice = choose(Target(backend.name), [backend.probe(host)], {backend.name: backend})
    except DeviceError as error:
        yield f"{name}: {error.what}"
        return
    plan = make_plan(choice, backend.caps, Request(), Decision("torch", "a test"))
    ranks = [f"{process.devices[0]} beside {process.cores[0] if process.cores else '?'}" for process in plan.processes]
    yield f"{name}: {plan.precision.value}, {len(ranks)} ranks: {', '.join(ranks)}"
    for variable, value in backend.rank_environment(plan, World(), host).items():
        yield f"  {variable}={value}"
    for resource, count in backend.resources(plan).items():
        yield f"  {resource}: {count}"


def test_launches_are_as_they_were() -> None:
    assert list(launches()) == SNAPSHOT.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(launches()) + "\n", encoding="utf-8")
