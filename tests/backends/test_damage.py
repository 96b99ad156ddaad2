"""Captures that were damaged: read as what the file still says, or refused with the line. Never guessed, never a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hwal_cuda
import hwal_rocm
from hwal.errors import RecordError
from hwal.paste import tidy
from hwal.testing.probes import check
from hwal.values import Probe
from tests.backends import test_cuda_captures as cuda
from tests.backends import test_cuda_matrix as matrix
from tests.backends import test_rocm_captures as rocm

NVLINKS = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV2\tNV1\tSYS\tPIX\tSYS\t0-15\t0
GPU1\tNV2\t X \tNODE\tNV1\tNODE\tSYS\t0-15\t0
GPU2\tNV1\tNODE\t X \tNV2\tSYS\tPXB\t16-31\t1
GPU3\tSYS\tNV1\tNV2\t X \tSYS\tPIX\t16-31\t1
NIC0\tPIX\tNODE\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPXB\tPIX\tSYS\t X
"""
# each pair stands twice: what is missing or changed in one place is seen by the other
TWICE = {
    "topo -m": NVLINKS,
    "topo -p2p": matrix.PEERS,
    "topo -m, tabs": matrix.TABS,
    "topo -m, blanks": matrix.SPACES,
    "topo -m, bare": matrix.BARE,
    "rocm-smi": rocm.ROCM_SMI,
    "amd-smi": rocm.AMD_SMI,
    "amd-smi --json": rocm.amd_smi_json(),
    "amd-smi --json, by fact": rocm.BY_FACT,
}
# each GPU stands once: a line less can be a GPU less
ONCE = {
    "-L": cuda.LIST,
    "nvlink -s": cuda.PORTS,
    "csv": cuda.CSV,
    "-q": cuda.QUERY,
    "-q -x": cuda.XML,
    "lspci": cuda.LSPCI,
    "nccl": cuda.TREE,
    "nccl, switches": cuda.SWITCHED,
    "rccl": rocm.TREE,
    "nccl graph": cuda.GRAPH,
    "kfd": json.dumps(rocm.KFD, indent=1),
}
EVERY = TWICE | ONCE
NICS_TWICE = {"topo -m"}  # in which each NIC has a row
COUNTED = {"-q", "-q -x"}  # which say how many there are


def read(text: str) -> Probe | None:
    """As hwal devices --from does; None for what no tool prints."""
    for backend in (hwal_cuda.backend, hwal_rocm.backend):
        probe = backend.capture(tidy(text), "capture.txt")
        if probe is not None:
            check(backend, probe)
            assert [(link.a, link.b) for link in probe.links] == list(combinations(range(len(probe.devices)), 2))
            return probe
    return None


def lines_of(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(map(change, text.split("\n")))


PASTED: dict[str, Callable[[str], str]] = {
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "no last newline": str.rstrip,
    "a byte-order mark": lambda text: "\ufeff" + text,
    "a prompt": lambda text: f"root@node:~# nvidia-smi topo -m\n{text.rstrip()}\nroot@node:~# ",
    "a fence": lambda text: f"```text\n{text.rstrip()}\n```",
    "blanks": lambda text: f"\n\n{text}\n\n",
    "bold": lines_of(lambda line: f"\x1b[1m{line}\x1b[0m" if line else line),
    "indented": lines_of(lambda line: f"    {line}"),
    "quoted": lines_of(lambda line: f"> {line}"),
    "lines end in blanks": lines_of(lambda line: f"{line}  "),
}


@pytest.mark.parametrize("way", PASTED)
@pytest.mark.parametrize("name", EVERY)
def test_what_was_pasted_is_read_alike(name: str, way: str) -> None:
    if "\n    ..." not in EVERY[name]:
        assert read(PASTED[way](EVERY[name])) == read(EVERY[name])


@pytest.mark.parametrize("name", [name for name in TWICE if name.startswith("topo") or name in ("rocm-smi", "amd-smi")])
def test_tables_do_not_hang_on_blanks(name: str) -> None:
    """What lines up the columns tells nothing but, where there are no tabs, which of the trailing ones are empty."""
    whole, collapsed = read(TWICE[name]), read(re.sub(r"[ \t]+", " ", TWICE[name]))
    assert whole is not None and collapsed is not None
    assert collapsed.links == whole.links
    assert all(less.numa in (None, more.numa) for less, more in zip(collapsed.devices, whole.devices, strict=True))


@st.composite
def damages(draw: st.DrawFn, texts: dict[str, str]) -> tuple[str, str]:
    """The name of a capture, and its text with one thing wrong."""
    name = draw(st.sampled_from(sorted(texts)))
    lines = texts[name].rstrip("\n").split("\n")
    place = draw(st.integers(0, len(lines) - 1))
    line = lines[place]
    words = list(re.finditer(r"\S+", line))
    ways = ["drop the line", "double the line", "end", "end in the line", "swap"]
    way = draw(st.sampled_from([*ways, "drop", "double", "other", "N/A", "blank", "glue"] if words else ways))
    if way == "drop the line":
        del lines[place]
    elif way == "double the line":
        lines.insert(place, line)
    elif way == "end":
        del lines[place:]
    elif way == "end in the line":
        lines[place:] = [line[: draw(st.integers(0, len(line)))]]
    elif way == "swap":
        other = draw(st.integers(0, len(lines) - 1))
        lines[place], lines[other] = lines[other], line
    else:
        word = draw(st.sampled_from(words))
        begin, end = word.span()
        put = {"drop": "", "double": f"{word[0]}\t{word[0]}", "other": "ZZ", "N/A": "N/A", "blank": " " * (end - begin)}
        before = line[:begin].rstrip() if way in ("drop", "glue") else line[:begin]
        lines[place] = before + put.get(way, word[0]) + line[end:]
    return name, "\n".join(lines)


@settings(max_examples=50)
@given(damages(TWICE))
def test_a_pair_that_stands_twice_is_read_right_or_refused(damage: tuple[str, str]) -> None:
    name, text = damage
    whole = read(TWICE[name])
    try:
        found = read(text)
    except RecordError as error:
        assert re.fullmatch(r"capture\.txt, line \d+", error.where or "")
        return
    if found is not None and whole is not None:
        assert len(found.links) == len(whole.links)
        for less, more in zip(found.links, whole.links, strict=True):
            assert (less.class_, less.count) == (more.class_, more.count)
            for fact in ("p2p", "bandwidth", "distance"):  # of a table each, which may be there or not
                assert getattr(less, fact) in (None, getattr(more, fact)), fact
        for one, other in zip(found.devices, whole.devices, strict=True):
            assert one.pci in (None, other.pci)
            assert not one.nics or one.nics == other.nics or name not in NICS_TWICE


@settings(max_examples=50)
@given(damages(ONCE))
def test_a_gpu_that_stands_once_is_whole_or_refused(damage: tuple[str, str]) -> None:
    name, text = damage
    whole = read(ONCE[name])
    try:
        found = read(text)
    except RecordError as error:
        assert re.fullmatch(r"capture\.txt, line \d+", error.where or "")
        return
    if found is not None and whole is not None:
        least = len(whole.devices) if name in COUNTED else 1
        assert least <= len(found.devices) <= len(whole.devices)
        numbers = ("pci", "memory_bytes", "part_of", "numa")
        for fact in numbers if name == "kfd" else ("id", "arch", *numbers):  # there two properties may become one
            told = {getattr(device, fact) for device in whole.devices} | {None}
            assert {getattr(device, fact) for device in found.devices} <= told, fact
        # a link less can be one less that is up: never one more, nor another kind
        assert {speed for device in found.devices for speed in device.ports} <= {
            speed for device in whole.devices for speed in device.ports
        }
        assert max(len(device.ports) for device in found.devices) <= max(len(device.ports) for device in whole.devices)
        kinds = {link.class_.rstrip("0123456789") for link in whole.links} | {""}
        assert {link.class_.rstrip("0123456789") for link in found.links} <= kinds
        most = max((link.count or 0 for link in whole.links), default=0)
        assert all((link.count or 0) <= most for link in found.links)
