"""Host -> Probe: the chips on PCI, the slice that they are part of, and what stands between them and this process.

A TPU Node (a TPU of another machine, reached by gRPC) is named, and for torch blocked: PJRT drives chips of its own machine
only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

from hwal.host import Host
from hwal.topology import Device, Link
from hwal.values import Probe, Target
from hwal_tpu import access, virtual
from hwal_tpu.chips import BOUNDS, GIB, NODE, Chip, Generation, find, is_block, kind_of, type_of
from hwal_tpu.packages import DRIVES, Trouble, libtpu_trouble, platform_trouble, tensorflow_alone, torch_xla_trouble
from hwal_tpu.present import ABSENT
from hwal_tpu.slice import Slice, asks_metadata, on_compute_engine, read_slice

VISIBLE = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")  # the latter is its former name


def probe(host: Host, asked: Target | None) -> Probe:
    """The chips that this process may have; what `--device tpu:cpu` asks for is another matter, and XLA's alone."""
    if asked is not None and virtual.is_meant(asked.spec):
        return virtual.probe(host, virtual.count(asked.spec) or 1)  # what is no number is for select() to refuse
    chips = find(host)
    part = read_slice(host) if chips or host.env("TPU_ACCELERATOR_TYPE") else Slice()
    if not chips:
        return _without_chips(host, part, asked)
    generation = chips[0].generation or _generation_of(part)
    visible, told = _visible(host, chips)
    found = _mask_trouble(host, chips) or _trouble(host, visible, generation)
    if found is not None:
        return Probe("tpu", "blocked", f"{_count(chips, generation)}: {found.reason}", found.hint)
    notes = [*told, *_slice_notes(host, chips, generation, part), *filter(None, [access.note(host, visible)])]
    devices = tuple(_devices(visible, generation))
    return Probe(
        "tpu",
        "ready",
        _what(chips, generation, part),
        devices=devices,
        links=tuple(_links(devices, generation)),
        notes=tuple(notes),
    )


# no chip here


def _without_chips(host: Host, part: Slice, asked: Target | None) -> Probe:
    if (address := _node_address(host, asked)) is not None and (tensorflow := tensorflow_alone(host)) is not None:
        sources = {"native": "table", "name": "environment"}
        node = Device("tpu", 0, NODE, address, native={"bf16": "MXU", "fp32": "MXU (bf16 passes)"}, sources=sources)
        return Probe(
            "tpu",
            "ready",
            f"a TPU Node at {address}, for Keras, by {tensorflow}",
            devices=(node,),
            notes=("a Node is the legacy way: another machine has the chips, and reads data from gs:// only",),
        )
    if address is not None:
        return Probe(
            "tpu",
            "blocked",
            f"a TPU Node at {address}: the legacy way, in which another machine has the chips; torch_xla (PJRT) drives those "
            "of its own machine only",
            "run on a TPU VM (gcloud compute tpus tpu-vm create …; in Colab a v5e-1 runtime). Only TensorFlow reaches a Node, "
            "whose data must lie on gs://",
        )
    if part.kind is not None and host.env("TPU_ACCELERATOR_TYPE"):
        return Probe(
            "tpu",
            "blocked",
            f"TPU_ACCELERATOR_TYPE={part.kind:.40} says that there is a TPU, but no chip is on PCI",
            "give the container its devices: docker run --privileged …; in Kubernetes a limit of google.com/tpu",
        )
    if asked is not None and asked.spec is not None and kind_of(asked.spec) is not None:
        return Probe("tpu", "absent", f"a {asked.spec} is not in this machine: {ABSENT}")
    return Probe("tpu", "absent", ABSENT)


def _node_address(host: Host, asked: Target | None) -> str | None:
    """Where a TPU Node listens: `10.0.0.2:8470`, which Colab gave by itself, and `grpc://…`; None where there is none.

    Or its name, by which Google's Cloud is asked: only where `--device tpu` was, since TPU_NAME is set for other programs too.
    """
    colab, name = host.env("COLAB_TPU_ADDR"), host.env("TPU_NAME") or ""
    if colab and re.fullmatch(r"[\w.\-]{1,255}:[0-9]{1,5}", colab, re.ASCII):
        return f"grpc://{colab}"
    if re.fullmatch(r"grpc://[\w.\-]{1,255}(:[0-9]{1,5})?", name, re.ASCII):
        return name
    return name if asked is not None and name != "local" and re.fullmatch(r"[a-z][a-z0-9-]{0,62}", name, re.ASCII) else None


# chips


def _mask(host: Host) -> tuple[str, str]:
    """(variable, its text) that leaves some of the chips; the text empty where all are left."""
    variable = next((name for name in VISIBLE if host.env(name)), VISIBLE[0])
    text = host.env(variable) or ""
    return variable, "" if text == "all" else text


def _visible(host: Host, chips: tuple[Chip, ...]) -> tuple[tuple[Chip, ...], list[str]]:
    """The chips that the user's variable leaves, and a note where it leaves not all."""
    variable, text = _mask(host)
    left = tuple(chip for chip in chips if str(chip.number) in text.split(","))
    if not left or len(left) == len(chips):
        return chips, []
    return left, [f"{variable}={text}: {len(left)} of {len(chips)} chips"]


def _mask_trouble(host: Host, chips: Sequence[Chip]) -> Trouble | None:
    """A variable that leaves what no process can have."""
    variable, text = _mask(host)
    if not text:
        return None
    numbers = [str(chip.number) for chip in chips]
    unknown = [item for item in text.split(",") if item not in numbers]
    if unknown:
        why = f"{unknown[0]!r:.20} is none of this host's chips ({numbers[0]} to {numbers[-1]})"
    elif not is_block([numbers.index(item) for item in text.split(",")], len(chips)):
        why = "a process has all chips, one, or 2 or 4 that lie together (0,1 or 2,3)"
    else:
        return None
    return Trouble(f"{variable}={text:.40}: {why}", f"unset {variable}, or a list of chips with commas and no spaces")


def _trouble(host: Host, chips: Sequence[Chip], generation: Generation | None) -> Trouble | None:
    """What to mend first: packages before nodes, since installing needs no rights."""
    if generation is not None and not generation.xla:
        return Trouble(
            f"torch_xla does not know the TPU {generation.name}; torch_tpu does, and hwal's runtime for it is still to come",
            "a TPU of another generation: v4, v5e, v5p, v6e",
        )
    if tensorflow_alone(host, DRIVES):
        return access.trouble(host, chips)
    return platform_trouble(host, "TPU") or torch_xla_trouble(host) or libtpu_trouble(host) or access.trouble(host, chips)


def _generation_of(part: Slice) -> Generation | None:
    kind = kind_of(part.kind)
    return kind[0] if kind else None


def _what(chips: Sequence[Chip], generation: Generation | None, part: Slice) -> str:
    """`4 × TPU v4, worker 1 of 4 of a v4-32 (2x2x4), 32 GiB of HBM and 275 bf16 TFLOPS each`."""
    count = _count(chips, generation)
    if generation is None:
        return f"{count}, of a generation that is not known"
    kind = kind_of(part.kind)
    whole = kind[1] if kind and kind[0] is generation and kind[1] >= len(chips) else len(chips)
    kind_text = part.kind if kind and kind[0] is generation and part.kind else type_of(generation, whole)
    shape = part.topology or ("x".join(map(str, _shape(generation, whole))) if whole in BOUNDS else None)
    place = ""
    if part.worker is not None and part.is_multi_host and part.worker < len(part.hosts):
        place = f"worker {part.worker} of {len(part.hosts)} of "
    return (
        f"{count}, {place}{'a ' if place else ''}{kind_text}{f' ({shape})' if shape else ''}, "
        f"{generation.hbm // GIB} GiB of HBM and {generation.tflops:g} bf16 TFLOPS each"
    )


def _count(chips: Sequence[Chip], generation: Generation | None) -> str:
    return f"{len(chips)} × TPU {generation.name}" if generation else f"{len(chips)} × TPU"


def _shape(generation: Generation, chips: int) -> tuple[int, ...]:
    """One host's chips on the torus, in as many axes as it has."""
    return BOUNDS[chips][: generation.axes]


def _devices(chips: Sequence[Chip], generation: Generation | None) -> list[Device]:
    """XLA's devices: a chip, or each of the two cores of a v2 or v3."""
    per_chip = generation.devices if generation else 1
    memory = generation.hbm // per_chip if generation else None
    native = {"bf16": "MXU", "fp32": "MXU (bf16 passes)"} if generation else {}
    devices: list[Device] = []
    for chip in chips:
        for core in range(per_chip):
            known = {"memory_bytes": memory, "numa": chip.numa, "arch": generation and generation.name}
            table = {"native": "table", "memory_bytes": "table", "numa": "sysfs", "arch": "sysfs", "name": "table"}
            devices.append(
                Device(
                    "tpu",
                    len(devices),
                    f"TPU {generation.name}" if generation else "TPU",
                    chip.address if per_chip == 1 else f"{chip.address}/{core}",
                    memory,
                    chip.numa,
                    generation.name if generation else None,
                    native=native,
                    sources={name: source for name, source in table.items() if known.get(name, True) is not None},
                )
            )
    return devices


def _links(devices: Sequence[Device], generation: Generation | None) -> list[Link]:
    """CHIP between the cores of one; else ICI, the torus between chips, at what one of its links carries."""
    bandwidth = generation.link if generation else None
    links = []
    for a, b in combinations(devices, 2):
        same = chip_of(a) == chip_of(b)
        kind, speed = ("CHIP", None) if same else ("ICI", bandwidth)
        links.append(Link(a.index, b.index, kind, speed, source="table", backend="tpu"))
    return links


def chip_of(device: Device) -> str:
    """What the cores of one chip have in common."""
    return (device.id or str(device.index)).partition("/")[0]


def _slice_notes(host: Host, chips: Sequence[Chip], generation: Generation | None, part: Slice) -> list[str]:
    notes = []
    kind = kind_of(part.kind)
    if generation is not None and kind is not None and kind[0] is not generation:
        notes.append(f"the slice is called {part.kind}, but its chips are of TPU {generation.name}")
    if (part.slices or 1) > 1:
        notes.append(
            f"slice {'?' if part.slice_index is None else part.slice_index} of {part.slices}, over the data centre's network"
        )
    if part.source is None and len(chips) > 1 and on_compute_engine(host):  # a host of one chip is never part of more
        ask = "the metadata server did not answer" if asks_metadata(host) else "HWAL_TPU_METADATA=1 asks the metadata server"
        notes.append(f"whether this host is one of several in a slice is not known: {ask}")
    elif part.is_multi_host and part.worker is None:
        notes.append(f"a slice of {len(part.hosts)} hosts, but which of them this is is not known: TPU_WORKER_ID is not set")
    return notes
