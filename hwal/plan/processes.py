"""Which processes there are, and the device, cores and threads of each (P7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hwal.errors import DeviceError, PlanError
from hwal.record import Record, dataclass
from hwal.topology import Device
from hwal.values import Caps, Choice, Process

ALONE = "where a launcher shows each rank one device of its own (srun --gpus-per-task), have it show all: --gpus-per-node"
MOST_A_CORE = 16  # processes; far beyond use, and short of what brings a machine down


@dataclass(frozen=True)
class Layout(Record):
    """The devices in use, the processes on them, and what the user should know about both."""

    devices: tuple[Device, ...]
    processes: tuple[Process, ...]
    notes: tuple[str, ...] = ()


def lay_out(
    choice: Choice, caps: Caps, asked: int | None, nodes: int = 1, one_for_all: bool = False, several: bool = True
) -> Layout:
    """One process a device, or `asked` of them: fewer leave devices idle, more share devices where the backend can.

    Args:
        one_for_all: one process drives all devices; there is one, or as many as devices when asked for.
        several: there may be several that nobody asked for.

    Raises PlanError when they do not fit, DeviceError when the backend is for one process only.
    """
    devices = choice.devices
    if one_for_all and _one_drives_all(choice, asked):
        return Layout(devices, (Process(0, tuple(device.index for device in devices), None, _all_threads(devices)),))
    count, notes = _count(choice, caps, asked, nodes) if asked or several else _one(choice)
    if count < len(devices):
        devices = devices[:count]
    placed = tuple(devices[rank * len(devices) // count] for rank in range(count))
    processes = tuple(Process(rank, (device.index,), None, device.threads) for rank, device in enumerate(placed))
    if count > 1 or _part_of_machine(choice, caps):
        processes, crowded = _pin(processes, placed)
        notes += crowded
    else:
        processes = tuple(
            replace(process, threads=_threads(device, device.cores, 1))
            for process, device in zip(processes, placed, strict=True)
        )
    return Layout(devices, processes, notes)


def _one_drives_all(choice: Choice, asked: int | None) -> bool:
    """Whether there is one process for all devices, and not one for each. Raises PlanError for another number."""
    have = len(choice.devices)
    if asked is not None and asked not in (1, have):
        raise PlanError(
            f"{asked} processes for {have} {choice.backend} device{'s' * (have > 1)}: "
            "there is one for all of them, or one for each",
            where=f"-n {asked} --device {choice.target}",
            hint="leave -n out: one process drives all devices" + (f"; or -n {have}" if have > 1 else ""),
        )
    return asked is None or asked == 1


def _all_threads(devices: Sequence[Device]) -> int | None:
    """Those beside all of the devices, each counted once; None where one's are not known."""
    near = [device.cores for device in devices]
    return len({core for cores in near for core in cores or ()}) if all(near) else None


def _one(choice: Choice) -> tuple[int, tuple[str, ...]]:
    have = len(choice.devices)
    idle = ", ".join(str(device.index) for device in choice.devices[1:])
    told = f"1 of {have} devices used, by one process; -n {have} takes all; idle: {choice.backend} {idle}"
    return 1, (told,) if idle else ()


def _count(choice: Choice, caps: Caps, asked: int | None, nodes: int) -> tuple[int, tuple[str, ...]]:
    have = len(choice.devices)
    count = have if asked is None else asked
    if caps.collectives is None and nodes * count > 1:
        if asked is None and nodes == 1:
            return 1, (f"1 of {have} devices used: {choice.backend} trains in one process only",)
        raise DeviceError(
            f"{choice.backend} trains in one process only, {nodes * count} were asked for",
            where=f"-n {count}" if nodes == 1 else f"{nodes} nodes × {count} processes",
            why="its ranks would have nothing to talk to each other through",
            hint="-n 1",
        )
    if count > have and not caps.shares_devices:
        raise PlanError(
            f"{count} processes need {count} devices, {have} chosen ({count} > {have})",
            where=f"-n {count} --device {choice.target}",
            why=f"processes of {choice.backend} do not share a device",
            hint=f"-n {have}"
            + ("" if choice.target.spec is None else f", or --device {choice.backend} for all there are")
            + (f"; {ALONE}" if have == 1 and choice.target.spec is None else ""),
        )
    if count > (most := _most(choice)):
        raise PlanError(
            f"{count:,} processes are too many for this machine: at most {MOST_A_CORE} a core, {most:,} in all",
            where=f"-n {count}",
            why="each holds a Python and a framework of its own, some 300 MB before it trains",
            hint="-n as many as there are cores at the most; more machines through --engine-args '--nnodes …'",
        )
    if count < have:
        idle = ", ".join(str(device.index) for device in choice.devices[count:])
        return count, (f"{count} of {have} devices used, because of -n {count}; idle: {choice.backend} {idle}",)
    return count, ()


def _most(choice: Choice) -> int:
    """How many processes the devices' cores can be asked to run at all."""
    cores = {core for device in choice.devices for core in device.cores or ()}
    threads = sum(device.threads or 0 for device in choice.devices)
    return max(len(choice.devices), MOST_A_CORE * max(len(cores), threads, 1))


def _part_of_machine(choice: Choice, caps: Caps) -> bool:
    """Whether one lone process must be kept to its device's cores: where the cores *are* the device, and there are others.

    Elsewhere it keeps the affinity it inherits, and its data loading may use every core.
    """
    return caps.shares_devices and (len(choice.devices) > 1 or choice.target.spec is not None)


def _pin(processes: Sequence[Process], placed: Sequence[Device]) -> tuple[tuple[Process, ...], tuple[str, ...]]:
    """Gives every process cores of its own. Processes beside the same cores get contiguous parts of them.

    Where sets of cores overlap without being equal, the smaller set is served first and its cores are then taken.
    """
    groups: dict[tuple[int, ...] | int, list[int]] = {}
    for rank, device in enumerate(placed):
        groups.setdefault(device.cores or -1 - device.index, []).append(rank)
    pinned = list(processes)
    taken: set[int] = set()
    notes: list[str] = []
    for ranks in sorted(groups.values(), key=lambda ranks: (len(placed[ranks[0]].cores or ()), ranks)):
        device, sharers = placed[ranks[0]], len(ranks)
        cores = _free(device.cores, taken, sharers)
        for position, rank in enumerate(ranks):
            part = None if cores is None else _part(cores, position, sharers)
            pinned[rank] = replace(pinned[rank], cores=part, threads=_threads(placed[rank], part, sharers))
            taken.update(part or ())
        room = min((n for n in (len(cores) if cores else None, device.threads) if n is not None), default=None)
        if room is not None and sharers > room:
            notes.append(_crowded(sharers, room, len(processes), cores))
    given = [core for process in pinned for core in process.cores or ()]
    if len(given) > len(set(given)) and not notes:
        notes.append(f"oversubscribed: {len(processes)} processes beside the same {len(set(given))} core(s) take turns")
    return tuple(pinned), tuple(notes)


def _free(cores: tuple[int, ...] | None, taken: set[int], sharers: int) -> tuple[int, ...] | None:
    """The cores not given away yet; all of them again when too few are left."""
    if not cores:
        return None
    free = tuple(core for core in cores if core not in taken)
    return free if len(free) >= min(sharers, len(cores)) else cores


def _part(cores: tuple[int, ...], position: int, sharers: int) -> tuple[int, ...]:
    """The contiguous part of `cores` at `position` of `sharers`; one core, shared, when there are more sharers than cores."""
    begin, end = position * len(cores) // sharers, (position + 1) * len(cores) // sharers
    return cores[begin : max(end, begin + 1)]


def _threads(device: Device, cores: tuple[int, ...] | None, sharers: int) -> int | None:
    limits = [len(cores)] if cores else []
    if device.threads is not None:
        limits.append(device.threads // sharers)
    return max(1, min(limits)) if limits else None


def _crowded(sharers: int, room: int, count: int, cores: tuple[int, ...] | None) -> str:
    what = f"{room} core(s)" if cores and len(cores) == room else f"{room} core(s)' worth of CPU quota"
    better = max(1, count * room // sharers)
    return f"oversubscribed: {sharers} processes on {what} take turns, which can be several times slower; -n {better} fits"
