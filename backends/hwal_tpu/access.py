"""Whether this process can open the chips' device nodes: permission, and who holds them already."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hwal.host import Host
from hwal_tpu.chips import Chip
from hwal_tpu.packages import Trouble

LOCKFILE = "/tmp/libtpu_lockfile"  # libtpu's: whoever drives all chips of a host keeps it open
MANY = 3


def trouble(host: Host, chips: Sequence[Chip]) -> Trouble | None:
    """A chip without a node, a node that may not be opened, or one that another process holds."""
    if any(chip.node is None for chip in chips):
        return Trouble(
            "the chips are on PCI, but /dev has no accel* or vfio/* for them",
            "give the container its devices: docker run --privileged …; in Kubernetes a limit of google.com/tpu",
        )
    nodes = [chip.node for chip in chips if chip.node is not None]
    denied = [node for node in nodes if host.may_open(node) is False]
    if denied:
        return Trouble(
            f"this user may not open {', '.join(denied[:MANY])}{' …' * (len(denied) > MANY)}",
            f"ls -l {denied[0]} names the group that may: sudo usermod -aG GROUP $USER, then log in anew; or sudo",
        )
    if holder := next(_holders(host, {*nodes, LOCKFILE}), None):
        pid, node, command = holder
        return Trouble(
            f"libtpu is held by another process: {pid}{f' ({command})' if command else ''} has {node} open",
            f"wait until it ends, or end it (kill {pid}): one process at a time drives a chip",
        )
    return None


def note(host: Host, chips: Sequence[Chip]) -> str | None:
    """A lock that another user left, whose process cannot be seen from here."""
    if host.may_open(LOCKFILE) is not False:
        return None
    node = next((chip.node for chip in chips if chip.node), "/dev/accel0")
    return f"{LOCKFILE} is another user's: if the TPU turns out to be busy, `sudo lsof -w {node}` names the process that has it"


def _holders(host: Host, files: set[str]) -> Iterator[tuple[int, str, str]]:
    """Other processes that have one of the files open, as far as this user may see: id, file, command line."""
    own = host.link("/proc/self")
    for pid in host.names("/proc"):
        if not re.fullmatch("[0-9]{1,9}", pid) or pid == own:
            continue
        folder = f"/proc/{pid}/fd"
        opened = {host.link(f"{folder}/{number}") for number in host.names(folder)}
        held = sorted(file for file in files if file in opened)  # /dev/… before /tmp/…
        if held:
            yield int(pid), held[0], _command(host, pid)


def _command(host: Host, pid: str) -> str:
    """`python3 train.py`, cut where it is long."""
    words = (host.read(f"/proc/{pid}/cmdline") or "").replace("\0", " ").split()
    text = " ".join(words)
    printable = "".join(character for character in text if character.isprintable())
    return printable if len(printable) <= 60 else printable[:57] + "…"
