"""`hwal devices order`, `select` and `groups`: which devices to take, and in which order."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from hwal import order
from hwal.cli import show, tell
from hwal.cli.parser import Exit, Parser
from hwal.env import TOPOLOGY, positive
from hwal.errors import EXIT_OK, DeviceError, PlanError, UsageError
from hwal.host import RecordedHost, Recording
from hwal.order import Answer, Graph
from hwal.survey import Survey
from hwal.topology import Device, Link, straggler
from hwal.values import Choice

ABOUT = {
    "order": "All visible devices in the best order: the worst link of the ring as good as it can be.",
    "select": "The best N devices: those whose ring has the best worst link.",
    "groups": "All visible devices in blocks of N consecutive ranks, for tensor parallelism: the worst pair in a block counts.",
}
KEYS = {"order": "order", "select": "selected", "groups": "groups"}
EPILOG = """\
Up to 16 devices the answer is proven to be the best; --explain says how, and which speeds are assumed.

What an order can do: choose devices, make groups, put pipeline neighbours next to each other, pair ranks with NUMA nodes.
What it cannot: NCCL and RCCL search their own rings, so a permutation of all devices makes a plain all-reduce no faster.

exit codes: 0 done, 1 the answer cannot be written, 2 a wrong flag or file, or not so many devices

examples:
  eval "$(hwal devices order --env)"
  hwal devices select -k 4 --explain
  hwal devices groups -g 2 --from topo.txt --json     topo.txt: nvidia-smi topo -m
"""


def main(command: str, argv: Sequence[str]) -> int:
    usage = {"order": "[--chain]", "select": "-k N [--objective job|pack|static|simple]", "groups": "-g N"}[command]
    parser = Parser(f"devices {command}", ABOUT[command], f"{usage} [flags]", EPILOG)
    if command == "order":
        parser.add_argument("--chain", action="store_true", help="the last need not be linked to the first (pipeline stages)")
    if command == "select":
        parser.add_argument("-k", type=partial(_count, "-k"), metavar="N", required=True, help="how many")
        parser.add_argument(
            "--objective",
            choices=("job", "pack", "static", "simple"),
            default="job",
            help="job: the best ring for one job (default); pack, static, simple: what NVIDIA's allocator for fleets takes by "
            "its best-effort, static and simple policy (pack on parts of chips, as in CPX mode: what AMD's takes)",
        )
        parser.add_argument(
            "--free", metavar="LIST", help="choose among these indices only (0,2,4); else among those not in use"
        )
        parser.add_argument("--with", dest="required", metavar="LIST", help="indices that have to be among them (not for job)")
    if command == "groups":
        parser.add_argument("-g", type=partial(_count, "-g"), metavar="N", required=True, help="devices in a block")
    parser.add_argument("--from", dest="source", metavar="PATH", help="as hwal devices --from")
    parser.add_argument("--device", metavar="D", default="auto", help="as hwal devices --device")
    parser.add_argument("--mixed", action="store_true", help="take devices of different kinds together")
    parser.add_argument("--env", action="store_true", help="print export lines that make a process see just these")
    parser.add_argument("--explain", action="store_true", help="say why, what is assumed, and whether it is proven")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    try:
        given = parser.parse_args(list(argv))
    except Exit:
        return EXIT_OK
    if given.env and (given.json or given.explain):
        raise UsageError("--env prints nothing but export lines", where=parser.prog, hint="leave out --json and --explain")
    from hwal.cli.devices import look

    found, choice = look(given.source, given.device)
    field = _field(found, choice, given.mixed)
    if not field.devices:
        raise DeviceError(
            f"no {choice.backend} device is there to choose from",
            where=parser.prog,
            why="; ".join(field.notes) or choice.why,
            hint="hwal devices tells what is there",
        )
    if command == "select":
        field = _free(field, given.free, given.k)
    answer = _answer(command, given, field)
    chosen = [field.devices[place] for place in answer.places]
    variables = found.backends[choice.backend].visible(chosen, found.machine or RecordedHost(Recording()))
    if given.env:
        if found.machine is None:
            _warn(variables, given.source)
        for note in field.notes:
            tell(f"hwal: {note}")
        if variables:
            show("\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()))
        else:
            tell(f"hwal: no variable makes a process see these {choice.backend} devices and no others")
    elif given.json:
        show(json.dumps(_document(command, answer, chosen, field.notes, variables), indent=2))
    else:
        show("\n".join(_text(command, answer, chosen, field.links, field.notes, given.explain)))
    return EXIT_OK


def _warn(variables: Mapping[str, str], source: str | None) -> None:
    """Lines for a machine on paper would widen a mask that is set here."""
    for name, value in variables.items():
        if os.environ.get(name, value) != value:
            tell(f"hwal: {name}={os.environ[name]} is set here; these lines are for the machine in {source or TOPOLOGY}")


def _count(flag: str, text: str) -> int:
    try:
        return positive(text)
    except ValueError as error:
        where = f"hwal devices {'select' if flag == '-k' else 'groups'}"
        raise UsageError(f"{flag} {text!r}: {error}", where=where, hint=f"{where} --help") from None


@dataclass(frozen=True)
class Field:
    """The devices to choose from, of one backend, with their links and graph, and what was left out."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    graph: Graph
    notes: tuple[str, ...]
    everything: tuple[int, ...]

    def only(self, free: Sequence[int]) -> Field:
        devices = tuple(device for device in self.devices if device.index in free)
        return replace(self, devices=devices, graph=order.graph(devices, self.links))


def _free(field: Field, named: str | None, k: int) -> Field:
    """The devices to select among: those that are named, or else those that nobody uses, where there are enough."""
    if named is not None:
        return field.only(_indices(named, field, "--free"))
    used = [device for device in field.devices if device.in_use]
    whose = ", ".join(device.use for device in used)
    if not used:
        return field
    if len(field.devices) - len(used) < k:
        return replace(field, notes=(*field.notes, f"in use by others, for want of free ones: {whose}"))
    field = field.only([device.index for device in field.devices if not device.in_use])
    return replace(field, notes=(*field.notes, f"left out, in use by others: {whose}; --free names which to take"))


def _indices(text: str, field: Field, flag: str) -> tuple[int, ...]:
    """Those of a list of indices (`0,2,4`). Raises DeviceError for one that is not there to choose from."""
    known = {str(device.index): device.index for device in field.devices}
    named = [part.strip() for part in text.split(",")]
    strangers = [part for part in named if part not in known]
    if strangers:
        raise DeviceError(f"no device {strangers[0]!r}; there are {', '.join(known)}", where=f"{flag} {text}")
    return tuple(dict.fromkeys(known[part] for part in named))


def _field(found: Survey, choice: Choice, mixed: bool) -> Field:
    """Devices that can be in a run together: whole ones of the fastest kind, unless other kinds are asked for."""
    notes = []
    visible = [device for probe in found.probes if probe.backend == choice.backend for device in probe.devices]
    named = visible if found.target.spec is None else choice.devices  # a choice of none in particular is ordered already
    devices = [device for device in named if not device.parts]
    if len(devices) < len(named):
        notes.append("GPUs that are cut into MIG instances are left out")
    chosen, others = order.fastest(devices)
    if others and not mixed:
        devices = list(chosen)
        notes.append(f"only {chosen[0].name}: a run that mixes kinds waits for the slowest ({', '.join(others)}); --mixed")
    elif price := straggler(devices):
        notes.append(price)
    links = [link for probe in found.probes if probe.backend == choice.backend for link in probe.links]
    everything = tuple(device.index for device in devices)
    return Field(tuple(devices), tuple(links), order.graph(devices, links), tuple(notes), everything)


def _answer(command: str, given: Any, field: Field) -> Answer:
    have = len(field.devices)
    if command == "order":
        return order.order(field.graph, given.chain)
    if command == "groups":
        if have % given.g:
            raise PlanError(
                f"{have} devices cannot be cut into blocks of {given.g}",
                where=f"-g {given.g}",
                why=f"{have} = {have // given.g} × {given.g} + {have % given.g}",
                hint=f"-g {', '.join(str(d) for d in range(1, have + 1) if have % d == 0)}, or hwal devices select first",
            )
        return order.groups(field.graph, given.g)
    if given.k > have:
        raise DeviceError(
            f"{given.k} devices asked for, {have} are there to choose from",
            where=f"-k {given.k}",
            why="; ".join(field.notes) or None,
            hint=f"-k {have}" if have else None,
        )
    required = () if given.required is None else _indices(given.required, field, "--with")
    if given.objective == "job":
        if required:
            raise UsageError("--with goes with --objective pack, static or simple", where=f"--with {given.required}")
        idle = [place for place, device in enumerate(field.devices) if not device.in_use]
        return order.select(field.graph, given.k, idle if len(idle) < given.k else ())
    indices = [device.index for device in field.devices]
    if given.objective == "pack" and any(device.part_of for device in field.devices):
        found = order.pack_parts(field.devices, field.links, given.k, required)
    elif given.objective == "pack":
        found = order.pack(field.links, indices, given.k, required)
    elif given.objective == "static":
        found = order.static(field.links, field.everything, indices, given.k, required)
    else:
        found = order.simple(field.links, indices, given.k, required)
    if found is None:
        among = f" with {given.required} among them" if required else ""
        raise DeviceError(f"--objective {given.objective} has no set of {given.k}{among} to give", where=f"-k {given.k}")
    return replace(found, places=tuple(map(indices.index, found.places)))


def _document(
    command: str, answer: Answer, chosen: Sequence[Device], notes: Sequence[str], variables: Mapping[str, str]
) -> dict[str, Any]:
    indices: list[Any] = [device.index for device in chosen]
    if answer.size is not None:
        indices = [indices[i : i + answer.size] for i in range(0, len(indices), answer.size)]
    return {
        KEYS[command]: indices,
        "exact": answer.exact,
        "objective": answer.objective,
        "bottleneck": answer.bottleneck,
        "bottleneck_proven": answer.exact or answer.certified,
        "why": answer.why,
        "assumed": list(answer.assumed),
        "notes": list(notes),
        "env": dict(variables),
    }


def _text(
    command: str, answer: Answer, chosen: Sequence[Device], links: Sequence[Link], notes: Sequence[str], explain: bool
) -> list[str]:
    indices = [str(device.index) for device in chosen]
    if answer.size is not None:
        indices = [" ".join(indices[i : i + answer.size]) for i in range(0, len(indices), answer.size)]
        lines = [f"{KEYS[command]}: {' | '.join(indices)}"]
    else:
        lines = [f"{KEYS[command]}: {' '.join(indices)}"]
    if answer.bottleneck is not None:
        lines.append(f"worst link: {answer.bottleneck or 'unknown'}{'' if answer.exact else f' ({answer.proof})'}")
    lines += [f"note: {note}" for note in notes]
    if explain:
        lines += [f"objective: {answer.objective}", f"why: {answer.why}"]
        if command == "order":
            lines.append(f"links in use: {_hops(answer, chosen, links)}")
        lines.append(f"assumed: {', '.join(answer.assumed) or 'nothing'}{', as no driver told' if answer.assumed else ''}")
        lines.append(
            "NCCL and RCCL search their own rings: this order matters for choosing, groups, stages and NUMA, not for them"
        )
    return lines


def _hops(answer: Answer, chosen: Sequence[Device], links: Sequence[Link]) -> str:
    """`0 NV2 3 NV2 2 …`."""
    classes = {(link.a, link.b): link.class_ or "?" for link in links}
    names = [device.index for device in chosen]
    closed = names + names[:1] if answer.objective.startswith("ring") and len(names) > 2 else names
    text = str(closed[0]) if closed else ""
    for a, b in pairwise(closed):
        text += f" {classes.get((min(a, b), max(a, b)), '?')} {b}"
    return text
