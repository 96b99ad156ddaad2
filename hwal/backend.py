"""Backend, the interface of a kind of hardware: how it is found, and what its processes need before they train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from hwal.errors import DeviceError
from hwal.finding import Finding
from hwal.host import Host
from hwal.topology import Device
from hwal.values import Caps, Decision, Picked, Plan, Probe, Target, World


class Backend(ABC):
    """A kind of hardware. One instance, named `backend`, in the backend's __init__.py, which imports no framework.

    Attributes:
        name: what --device calls it.
        priority: the ready backend with the highest is what auto takes; None: never taken unless named.
        extra: the extra of hwal that installs what it needs (`pip install 'hwal[EXTRA]'`).
        runtimes: framework -> "module:Class", imported in the worker only.
    """

    name: ClassVar[str]
    priority: ClassVar[int | None]
    extra: ClassVar[str]
    caps: ClassVar[Caps]
    runtimes: ClassVar[Mapping[str, str]]

    @abstractmethod
    def probe(self, host: Host, asked: Target | None = None) -> Probe:
        """Looks for devices. `asked` is the target that names this backend, None when only looking."""

    def capture(self, text: str, where: str) -> Probe | None:
        """What a tool of the vendor printed (`hwal devices --from FILE`), as the probe that its machine would have given.

        `text` was tidied (hwal.paste). None where no tool of this backend prints such a thing. Raises RecordError naming
        `where` and the line that is damaged.
        """
        return None

    def unnamed(self, probe: Probe, count: int | None = None) -> Picked:
        """The devices of a target that names none (`auto`, `cuda`), in the order that ranks take them.

        `count`: how many are wanted, where that is known. A backend whose devices are all alike may leave it aside.
        """
        return Picked(probe.devices)

    def select(self, asked: Target, probe: Probe) -> tuple[Device, ...]:
        """The devices that `asked` names, in its order: indices or ids, separated by commas. Raises DeviceError."""
        if asked.spec is None:
            return self.unnamed(probe).devices
        where = f"--device {asked}"
        chosen: list[Device] = []
        for part in map(str.strip, asked.spec.split(",")):
            found = [device for device in probe.devices if part in (str(device.index), device.id)]
            if not found:
                there = ", ".join(f"{d.index} ({d.id})" if d.id else str(d.index) for d in probe.devices)
                raise DeviceError(
                    f"{self.name} has no device {part!r}; there are {there}", where=where, hint=f"--device {self.name}"
                )
            if found[0] in chosen:
                raise DeviceError(f"device {part!r} is named twice", where=where, hint="name each once")
            chosen.append(found[0])
        return tuple(chosen)

    def runtime(self, plan: Plan) -> str | None:
        """Where the Runtime that trains by `plan` is, as in `runtimes`; None where its framework has none."""
        return self.runtimes.get(plan.framework.value)

    def diagnose(self, host: Host, probe: Probe) -> Iterable[Finding]:
        """What is wrong, or could be better, with the devices of a ready probe (`hwal doctor`)."""
        return ()

    def visible(self, devices: Sequence[Device], host: Host) -> dict[str, str]:
        """The variables by which a process sees these devices, in this order, and no others; empty where there are none.

        `host` is asked for masks that are set already, which are never widened.
        """
        return {}

    def environment(self, plan: Plan) -> dict[str, str]:
        """Variables that every rank must have before its framework is imported."""
        return {}

    def tuning(self, plan: Plan, probe: Probe, host: Host) -> dict[str, Decision]:
        """Variables that suit the devices, links and network of this machine, each with the reason that is printed.

        `probe` is this backend's own. What the user has set stays, and is told.
        """
        return {}

    def rank_environment(self, plan: Plan, world: World, host: Host) -> dict[str, str]:
        """The variables that differ from rank to rank: what this one must have before its framework is imported.

        They replace what is set already: the plan was made with the user's own variables in view.
        """
        return {}

    def check(self, plan: Plan) -> None:  # noqa: B027 - most backends have nothing to refuse
        """Raises PlanError where the devices cannot run `plan`, for a reason that Caps does not tell."""

    def world(self, plan: Plan, host: Host) -> World | None:
        """The world that machines wired up with each other make, where each of them starts the same command; None elsewhere.

        Asked only where no launcher has started this process. Raises WorldError where this machine's place is not known.
        """
        return None

    def resources(self, plan: Plan) -> dict[str, str]:
        """What a scheduler must grant one node, by the scheduler's names (`nvidia.com/gpu`)."""
        return {}
