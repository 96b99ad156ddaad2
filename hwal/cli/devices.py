"""`hwal devices`: what is here, what is blocked and why, what auto would take."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hwal.cli import show, tell
from hwal.cli.parser import Exit, Parser, columns
from hwal.display import size
from hwal.env import TOPOLOGY
from hwal.errors import EXIT_OK, DeviceError, OutputError, UsageError, nearest
from hwal.survey import Survey, survey
from hwal.topology import Device, Link
from hwal.values import AUTO, Choice, Machine

EPILOG = """\
--from reads what hwal devices --json wrote, a recorded host's folder, and what vendors' tools print:
  nvidia-smi topo -m (and -p2p r), -q, -q -x, -L, nvlink -s, --query-gpu=… --format=csv; rocm-smi --showtopo;
  amd-smi topology [--json]; lspci -nn; the topology and graph files of NCCL and RCCL (NCCL_TOPO_DUMP_FILE);
  KFD's sysfs as an object of path and text. Prompts, colours and quotes of a pasted file do not matter

exit codes: 0 done, 1 the answer or the picture cannot be written, 2 a wrong flag or file, or nothing to draw

examples:
  hwal devices
  hwal devices order                    all devices in the best order; --help says more
  hwal devices select -k 4              the best four
  hwal devices groups -g 2              blocks of two, for tensor parallelism
  hwal devices --json > machine.json
  hwal devices --from machine.json      the same machine, elsewhere
  hwal devices --device tpu:cpu:4       with XLA's CPU platform, which is there only when asked for
  HWAL_NULL_DEVICES=4 hwal devices      with four imaginary devices
"""


COMMANDS = ("order", "select", "groups")
DEFAULT = "torch"  # what hwal train trains with where no script says otherwise


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] in COMMANDS:
        from hwal.cli.order import main as choose_devices

        return choose_devices(argv[0], argv[1:])
    if argv and not argv[0].startswith("-"):
        near = nearest(argv[0], COMMANDS)
        hint = f"did you mean hwal devices {near}?" if near else "hwal devices --help"
        raise UsageError(f"unknown command {argv[0]!r}; there are {', '.join(COMMANDS)}", where="hwal devices", hint=hint)
    about = "What hardware is here, what is blocked and why, and what --device auto would take."
    parser = Parser("devices", about, "[order|select|groups] [flags]", EPILOG)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--from", dest="source", metavar="PATH", help="read this file or recorded host, not this machine (see below)"
    )
    parser.add_argument("--device", metavar="D", default=AUTO, help="what hwal train --device D would take (default auto)")
    parser.add_argument("--svg", metavar="FILE", help="draw the devices that are chosen, their links and best ring")
    try:
        given = parser.parse_args(list(argv))
    except Exit:
        return EXIT_OK
    found = _survey(given.source, given.device)
    machine, nothing = _machine(found)
    if given.svg:
        _draw(given.svg, machine, nothing)
    if given.json:
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        show(json.dumps(machine.to_dict(), indent=2, ensure_ascii=not utf8, allow_nan=False))
    else:
        show("\n".join(table(machine, nothing, columns(80))))
    return EXIT_OK


def _survey(source: str | None, device: str) -> Survey:
    if source == "":
        raise UsageError("--from needs the path of a file or recorded host", where="hwal devices --from ''")
    return survey(source or os.environ.get(TOPOLOGY) or None, device)


def look(source: str | None, device: str) -> tuple[Survey, Choice]:
    """The machine and the choice that --device makes on it. Raises DeviceError where nothing can be chosen."""
    found = _survey(source, device)
    from hwal.choose import choose

    return found, choose(found.target, found.probes, found.backends)


def _machine(found: Survey) -> tuple[Machine, str | None]:
    """The machine with the choice that is made on it, or why auto makes none. Raises DeviceError where --device names what
    is not here."""
    if found.choice is not None and found.target.backend == AUTO:
        return Machine(found.host, found.probes, found.choice), None
    from hwal.choose import choose

    framework = DEFAULT if found.target.backend == AUTO else None
    try:
        return Machine(found.host, found.probes, choose(found.target, found.probes, found.backends, framework=framework)), None
    except DeviceError as error:
        if found.target.backend != AUTO:
            raise
        return Machine(found.host, found.probes), f"{error.what} ({error.why})"


def _draw(path: str, machine: Machine, nothing: str | None) -> None:
    """Writes the picture of the choice. Raises DeviceError where there is none, OutputError where it cannot be written."""
    if machine.choice is None:
        raise DeviceError(f"there is nothing to draw: {nothing}", where=f"--svg {path}")
    from hwal.choose import describe
    from hwal.cli.picture import draw
    from hwal.order import graph, order

    devices = [device for device in machine.choice.devices if not device.parts]
    links = [link for link in machine.topology.links if link.backend == machine.choice.backend]
    title = f"{machine.host.name or ''} {describe(devices)}".strip()
    try:
        Path(path).write_text(draw(title, devices, links, order(graph(devices, links))), encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"the picture cannot be written: {error.strerror}", where=f"--svg {path}", hint="another path"
        ) from None
    tell(f"hwal: {path} shows {describe(devices)}")


def table(machine: Machine, nothing: str | None, width: int) -> list[str]:
    """The machine as lines of at most `width` columns, where no single word is longer."""
    host = machine.host
    lines = [f"{host.name or 'this machine'}: {host.system} {host.machine}"]
    for probe in machine.probes:
        if probe.state == "ready" and probe.devices:
            lines += ["", *_fill(f"{probe.backend}: {probe.reason}", width), *_devices(probe.devices, width)]
            lines += _native(probe.devices, width)
            lines += _nics(probe.devices, width)
            lines += _links(probe.links, width)
            unfit = [f"not for {each.framework}: {each.reason}; {each.hint}" for each in probe.unfit]
            lines += [line for note in (*probe.notes, *unfit) for line in _fill(f"note: {note}", width, "  ")]
    for probe in machine.probes:
        if probe.state == "blocked":
            lines += ["", *_fill(f"{probe.backend}: blocked: {probe.reason}", width)]
            lines += _fill(f"try: {probe.hint}", width, "  ") if probe.hint else []
    choice = machine.choice
    taken = "auto would take" if choice is None or choice.target.backend == AUTO else "chosen:"
    lines += ["", *_fill(f"{taken} {choice or f'nothing: {nothing}'}", width)]
    timed = [f"{probe.backend} {probe.ms:.1f} ms" for probe in machine.probes if probe.ms is not None]
    if timed:
        lines += _fill(f"probes: {', '.join(timed)}", width)
    return lines


HEADS = ("#", "name", "id", "memory", "NUMA", "cores", "threads")


def _devices(devices: Sequence[Device], width: int) -> list[str]:
    """One row a device; name, id and cores are wrapped until the row fits."""
    rows = [HEADS, *map(_row, devices)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    spare = width - 2 - 2 * (len(HEADS) - 1) - sum(widths)
    for column in (1, 2, 5):
        if spare < 0:
            cut = min(-spare, widths[column] - 12)
            widths[column] -= max(cut, 0)
            spare += max(cut, 0)
    lines = []
    for row in rows:
        cells = [_wrap(text, widths[column]) for column, text in enumerate(row)]
        for depth in range(max(map(len, cells))):
            parts = [(cell[depth] if depth < len(cell) else "").ljust(widths[column]) for column, cell in enumerate(cells)]
            lines.append("  " + "  ".join(parts).rstrip())
    return lines


def _row(device: Device) -> tuple[str, ...]:
    return (
        str(device.index),
        device.name or "?",
        device.id or "?",
        size(device.memory_bytes),
        "?" if device.numa is None else str(device.numa),
        "?" if device.cores is None else ranges(device.cores),
        "?" if device.threads is None else str(device.threads),
    )


def _native(devices: Sequence[Device], width: int) -> list[str]:
    """Which precisions are native, and by what; devices that agree are told together."""
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for device in devices:
        groups.setdefault(tuple(device.native.items()), []).append(device.index)
    lines = []
    for native, indices in groups.items():
        text = ", ".join(name if unit == name else f"{name} ({unit})" for name, unit in native) or "unknown"
        which = f" of {ranges(indices)}" if len(groups) > 1 else ""
        lines += _fill(f"native precisions{which}: {text}", width, "  ")
    return lines


def _nics(devices: Sequence[Device], width: int) -> list[str]:
    """Which NICs are nearest; devices that have the same are told together."""
    groups: dict[str, list[int]] = {}
    for device in devices:
        for path in dict.fromkeys(device.nics.values()):
            names = ", ".join(name for name, other in device.nics.items() if other == path)
            groups.setdefault(f"{names} ({path})", []).append(device.index)
    told = "; ".join(f"{ranges(indices)} {nics}" for nics, indices in groups.items())
    return _fill(f"nearest NICs: {told}", width, "  ") if told else []


def _links(links: Sequence[Link], width: int) -> list[str]:
    """Pairs of devices by the kind of link between them."""
    groups: dict[str, list[str]] = {}
    for link in links:
        speed = "" if link.bandwidth is None else f", {link.bandwidth / 1e9:.4g} GB/s"
        peer = "" if link.p2p is None else ", p2p" if link.p2p else ", no p2p"
        groups.setdefault(f"{link.class_ or 'unknown'}{speed}{peer} (from {link.source})", []).append(f"{link.a}-{link.b}")
    return [line for kind, pairs in groups.items() for line in _fill(f"links {kind}: {' '.join(pairs)}", width, "  ")]


def ranges(numbers: Iterable[int]) -> str:
    """`0-3,8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _wrap(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    from textwrap import wrap

    return wrap(text, width)


def _fill(text: str, width: int, indent: str = "") -> list[str]:
    """Wrapped at `width`; following lines stand two columns further in."""
    if len(indent) + len(text) <= width:
        return [indent + text]
    from textwrap import wrap

    return wrap(
        text, width, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False, break_on_hyphens=False
    )
