"""What a process needs before torch_xla opens its devices: PJRT's and libtpu's variables, and this host's place in its slice.

The names and values are those that torch_xla's own launcher sets (2.8.1: `torch_xla/_internal/tpu.py`, `configure_topology`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hwal.errors import PlanError, WorldError
from hwal.host import Host
from hwal.plan.keras import VARIABLES
from hwal.plan.strategy import OFFLOAD, is_hybrid
from hwal.topology import Device
from hwal.values import SLICE, Plan, World
from hwal_tpu.chips import BOUNDS, find, is_node
from hwal_tpu.packages import INSTALL
from hwal_tpu.probe import chip_of
from hwal_tpu.slice import Bounds, read_slice
from hwal_tpu.virtual import is_tensorflows, is_virtual

LIBTPU_PORT = 8476  # and those that follow, one a process: where the libtpus of a slice meet
PORT = 29500  # torchrun's default: where the ranks of a slice meet
KERAS = "keras"


def environment(plan: Plan) -> dict[str, str]:
    """The platform, which torch_xla reads when it opens its devices, and how many devices XLA's CPU platform has; for Keras
    which library it computes by."""
    if plan.framework.value == KERAS:
        return dict(VARIABLES)
    if is_virtual(plan.devices[0]):
        return {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(len(plan.devices))}
    return {"PJRT_DEVICE": "TPU"}


def resources(plan: Plan) -> dict[str, str]:
    """What Kubernetes must grant a node: chips, by the name that Google's device plugin gives them."""
    if is_virtual(plan.devices[0]):
        return {}
    return {"google.com/tpu": str(len({chip_of(device) for device in plan.devices}))}


def check(plan: Plan) -> None:
    """Raises PlanError for a strategy that XLA has no counterpart of, and for several processes where they cannot train
    together."""
    if plan.framework.value == KERAS:
        _check_keras(plan)
        return
    if is_node(plan.devices[0]):
        raise PlanError(
            f"a TPU Node at {plan.devices[0].id} is for Keras only: torch_xla (PJRT) drives chips of its own machine",
            where="--device tpu",
            hint="run on a TPU VM (gcloud compute tpus tpu-vm create …)",
        )
    if is_tensorflows(plan.devices[0]):
        raise PlanError(
            "torch_xla is not installed: only Keras trains on these devices", where="--device tpu:cpu", hint=INSTALL
        )
    asked = plan.strategy.value
    if asked.endswith(OFFLOAD) or is_hybrid(asked):
        what = f"{OFFLOAD} keeps shards in the host's memory" if asked.endswith(OFFLOAD) else "hybrid keeps a copy on each host"
        raise PlanError(
            f"on a TPU parameters are cut over all devices and stay there; {what}",
            where=f"--strategy {asked}",
            hint="--strategy fsdp:full; --grad-checkpoint saves memory too",
        )
    if plan.local_size == 1:
        return
    where = f"-n {plan.local_size}"
    if is_virtual(plan.devices[0]):
        raise PlanError(
            f"{plan.local_size} processes on XLA's CPU platform would have nothing to talk to each other through",
            where=where,
            why="its virtual devices are of one process, and its collectives do not reach another",
            hint=f"leave -n out: one process drives all {len(plan.devices)} devices",
        )
    if len({chip_of(device) for device in plan.devices}) < len(plan.devices):
        raise PlanError(
            f"{plan.local_size} processes for the cores of {len({*map(chip_of, plan.devices)})} chips",
            where=where,
            why=f"the two cores of a TPU {plan.devices[0].arch} chip belong to one process, a thread each",
            hint="leave -n out: one process drives all cores",
        )


def _check_keras(plan: Plan) -> None:
    if plan.local_size > 1:
        raise PlanError(
            f"{plan.local_size} processes of Keras on a TPU",
            where=f"-n {plan.local_size}",
            why="TPUStrategy drives all cores from one process",
            hint="leave -n out",
        )


def world(plan: Plan, host: Host) -> World | None:
    """This host among those of its slice; None where it is alone. Raises WorldError where its place is not known.

    Each host of a slice runs the same command. One process a host needs no launcher; several a host need torchrun's.
    """
    if is_virtual(plan.devices[0]) or is_node(plan.devices[0]):
        return None
    part = read_slice(host)
    if plan.framework.value == KERAS and part.is_multi_host:
        raise WorldError(
            f"a slice of {len(part.hosts)} hosts: Keras trains on the chips of one host in this version",
            where="TPU_WORKER_HOSTNAMES",
            why="TPUStrategy would drive the others through a TensorFlow server on each, which nobody has started there",
            hint="a slice of one host (v5e-8, v4-8), or a torch script",
        )
    if (part.slices or 1) > 1:
        raise WorldError(
            f"{part.slices} slices that train together are not in this version",
            where="MEGASCALE_NUM_SLICES",
            hint="one slice, with MEGASCALE_NUM_SLICES unset",
        )
    if not part.is_multi_host:
        return None
    size = len(part.hosts)
    if part.worker is None or part.worker >= size:
        told = "TPU_WORKER_ID is not set" if part.worker is None else f"TPU_WORKER_ID={part.worker} is not below {size}"
        raise WorldError(
            f"a slice of {size} hosts, and which of them this is is not known: {told}",
            where=f"TPU_WORKER_HOSTNAMES={','.join(part.hosts):.80}",
            hint="set TPU_WORKER_ID to this host's place in the list, from 0; or HWAL_TPU_METADATA=1 on a TPU VM",
        )
    if len({chip_of(device) for device in plan.devices}) < len(find(host)):
        raise WorldError(
            f"{len(plan.devices)} of this host's chips, which is one of {size} hosts of a slice",
            where="--device",
            why="a slice is one torus: each of its hosts takes part with all its chips",
            hint="--device tpu; or, for a run on this host alone, unset TPU_WORKER_HOSTNAMES",
        )
    if plan.local_size > 1:
        meeting = f"--nnodes {size} --node-rank {part.worker} --master-addr {part.hosts[0]} --master-port {PORT}"
        raise WorldError(
            f"{plan.local_size} processes on each of {size} hosts need torchrun between them",
            where=f"-n {plan.local_size}",
            hint=f"leave -n out: one process a host drives its chips; or --engine-args '{meeting}'",
        )
    return World(part.worker, size, 0, 1, SLICE, part.hosts[0], PORT)


def rank_environment(plan: Plan, world: World, host: Host) -> dict[str, str]:
    """libtpu's variables of this rank; none where one process has all chips of the host, since that is what libtpu takes.

    Args:
        host: asked how the chips and hosts of the slice lie.
    """
    if is_virtual(plan.devices[0]) or is_node(plan.devices[0]):
        return {}
    process = plan.processes[world.local_rank % plan.local_size]
    by_index = {device.index: device for device in plan.devices}
    mine = [by_index[index] for index in process.devices]
    if plan.local_size > 1:
        return _one_of_several(plan, world, host, mine)
    chips = find(host)
    places = _places(host, mine)
    if not places or len(places) == len(chips):
        return {}
    return {
        "TPU_VISIBLE_CHIPS": ",".join(map(str, places)),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _text(BOUNDS[len(places)]),
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }


def _one_of_several(plan: Plan, world: World, host: Host, mine: Sequence[Device]) -> dict[str, str]:
    """A process with one chip, of as many processes as chips on each host of the slice."""
    part = read_slice(host)
    hosts = ("localhost",) if world.nodes == 1 else part.hosts if len(part.hosts) == world.nodes else ()
    if not hosts:
        raise WorldError(
            f"the names of the slice's hosts are not known: {world.nodes} machines train, {len(part.hosts)} have a name",
            where="TPU_WORKER_HOSTNAMES",
            hint="HWAL_TPU_METADATA=1 asks the metadata server; or set TPU_WORKER_HOSTNAMES and TPU_WORKER_ID",
        )
    worker = part.worker if part.worker is not None and len(hosts) > 1 else world.rank // plan.local_size
    whole = plan.local_size == len(find(host))  # what is known of the host's chips is of all of them
    chip_bounds = (part.chip_bounds if whole else None) or BOUNDS.get(plan.local_size, (plan.local_size, 1, 1))
    host_bounds = part.host_bounds if part.host_bounds and len(hosts) > 1 else (1, 1, len(hosts))
    ports = range(LIBTPU_PORT, LIBTPU_PORT + plan.local_size)
    places = _places(host, mine)
    return {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": _text(tuple(a * b for a, b in zip(host_bounds, chip_bounds, strict=True))),
        "CLOUD_TPU_TASK_ID": str(worker * plan.local_size + world.local_rank),
        "TPU_PROCESS_ADDRESSES": ",".join(f"{name}:{port}" for name in hosts for port in ports),
        "TPU_VISIBLE_CHIPS": ",".join(map(str, places)) or str(world.local_rank),
        "TPU_PROCESS_PORT": str(ports[world.local_rank]),
        "PJRT_LOCAL_PROCESS_RANK": str(world.local_rank),
        "PJRT_LOCAL_PROCESS_COUNT": str(plan.local_size),
    }


def _places(host: Host, devices: Sequence[Device]) -> list[int]:
    """libtpu's numbers of the devices' chips."""
    wanted = {chip_of(device) for device in devices}
    return [chip.number for chip in find(host) if chip.address in wanted]


def _text(bounds: Sequence[int] | Bounds) -> str:
    return ",".join(map(str, bounds))
