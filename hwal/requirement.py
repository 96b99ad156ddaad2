"""What wheels ask for (`nvidia-nccl-cu12==2.27.5; platform_system == "Linux"`), read without a library of packaging."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import NamedTuple

from hwal.host import Host

CONDITION = re.compile(r"""(\w+)\s*([<>=!]=|[<>])\s*["']([^"']*)["']""")
TOKEN = re.compile(rf"[()]|{CONDITION.pattern}|[^\s()]+")
COMPARISONS: Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "==": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


class Pin(NamedTuple):
    """A distribution that is asked for by exact version."""

    name: str
    version: str


def pins(host: Host, distribution: str) -> list[Pin]:
    """What an installed distribution asks for by exact version on this machine; extras are asked for by nobody."""
    found = []
    for text in host.requires(distribution):
        pin = re.match(r"([\w.-]+)(?:\[[^\]]*\])?\s*\(?==\s*([\w.]+)", text)
        if pin is not None and _applies(text.partition(";")[2], host):
            found.append(Pin(*pin.groups()))
    return found


def _applies(marker: str, host: Host) -> bool:
    """Whether an environment marker (PEP 508) holds here; a condition about anything but _facts, as an extra, does not."""
    tokens = [found[0] for found in TOKEN.finditer(marker)]
    return not tokens or (_any(tokens, _facts(host)) and not tokens)  # a rest: it was no marker


def _facts(host: Host) -> dict[str, str]:
    return {
        "os_name": "nt" if host.system == "win32" else "posix",
        "sys_platform": host.system,
        "platform_system": {"linux": "Linux", "win32": "Windows", "darwin": "Darwin"}.get(host.system, host.system),
        "platform_machine": host.machine,
        "python_version": ".".join(host.python.split(".")[:2]),
        "python_full_version": host.python,
    }


def _any(tokens: list[str], facts: Mapping[str, str]) -> bool:
    """What `tokens` begins with, which it takes away: conditions, `and` before `or`."""
    holds = _all(tokens, facts)
    while tokens[:1] == ["or"]:
        del tokens[0]
        holds = _all(tokens, facts) or holds  # in this order: what is not needed is taken away too
    return holds


def _all(tokens: list[str], facts: Mapping[str, str]) -> bool:
    holds = _one(tokens, facts)
    while tokens[:1] == ["and"]:
        del tokens[0]
        holds = _one(tokens, facts) and holds
    return holds


def _one(tokens: list[str], facts: Mapping[str, str]) -> bool:
    token = tokens.pop(0) if tokens else ""
    if token == "(":
        holds = _any(tokens, facts)
        return tokens[:1] == [")"] and tokens.pop(0) == ")" and holds
    found = CONDITION.fullmatch(token)
    if found is None or found[1] not in facts:
        return False
    ours, theirs = facts[found[1]], found[3]
    if found[1].startswith("python_"):
        version, wanted = _release(ours), _release(theirs)
        return version is not None and wanted is not None and COMPARISONS[found[2]](version, wanted)
    return found[2] in ("==", "!=") and (ours == theirs) == (found[2] == "==")


def _release(version: str) -> tuple[int, ...] | None:
    """3.10 -> (3, 10, 0): versions that differ in zeros at the end alone are the same. None for what is no such version."""
    if not re.fullmatch(r"\d+(\.\d+){0,2}", version):
        return None
    numbers = tuple(map(int, version.split(".")))
    return numbers + (0,) * (3 - len(numbers))
