"""Which of the lines that a wheel asks with are for this machine."""

from __future__ import annotations

import pytest

from hwal.host import Host, RecordedHost, Recording
from hwal.requirement import pins


class Machine(RecordedHost):
    """One with a Python of its own."""

    python = "3.11.9"


def applies(marker: str, system: str = "linux", machine: str = "x86_64") -> bool:
    asks = {"torch": (f"luck==1.2; {marker}" if marker else "luck==1.2",)}
    return pins(Machine(Recording(system=system, machine=machine, requires=asks)), "torch") == [("luck", "1.2")]


@pytest.mark.parametrize(
    "marker",
    [
        "",
        'platform_system == "Linux"',
        "platform_system=='Linux' and platform_machine=='x86_64'",
        'sys_platform == "linux"',
        'sys_platform != "win32"',
        'platform_system != "Windows" and os_name == "posix"',
        'python_version >= "3.10"',
        'python_version > "3.9" and python_version < "3.13"',
        'python_version == "3.11" and python_full_version != "3.11.0"',
        'python_full_version >= "3.11.9" and python_full_version <= "3.11.10"',
        'extra == "all" or sys_platform == "linux"',
        'sys_platform == "linux" or extra == "all" and extra == "more"',
        '(sys_platform == "win32" or sys_platform == "linux") and python_version < "3.12"',
    ],
)
def test_what_is_for_this_machine(marker: str) -> None:
    assert applies(marker)


@pytest.mark.parametrize(
    "marker",
    [
        'extra == "all"',
        'extra != "all"',
        'platform_system == "Windows"',
        'platform_machine != "x86_64"',
        'python_version < "3.10"',  # by number: as text, 3.11 is less than 3.2
        'python_version <= "3.2"',
        'python_version != "3.11.0"',
        'python_version >= "three"',
        'python_full_version > "3.11.9"',
        'sys_platform == "linux" and extra == "all"',
        '(extra == "all" or sys_platform == "linux") and sys_platform == "darwin"',
        'sys_platform > "a"',
        'sys_platform == "linux" and',
        '(sys_platform == "linux"',
        'sys_platform == "linux" sys_platform == "linux"',
        'not sys_platform == "linux"',
        "(",
        "nonsense",
    ],
)
def test_what_is_not_or_cannot_be_told(marker: str) -> None:
    assert not applies(marker)


def test_other_machines() -> None:
    assert applies('sys_platform == "win32" and os_name == "nt"', "win32", "AMD64")
    assert applies('sys_platform == "darwin" and platform_machine == "arm64"', "darwin", "arm64")
    assert not applies('sys_platform != "darwin"', "darwin", "arm64")


def test_python_is_the_one_that_runs() -> None:
    import platform

    assert Host().python == RecordedHost(Recording()).python == platform.python_version().rstrip("+")
