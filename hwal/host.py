"""Host: the only reader of files, commands, libraries and environment that probes use.

A probe asks a Host and nothing else, so that a recorded machine can stand in for this one: `RecordedHost.load(folder)`
answers from `host.json`, which `hwal.testing.hosts.record` writes. A Host answers None for what is not there; it never
guesses and never raises for an absent file or program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from hwal.errors import UsageError
from hwal.record import Record, dataclass

RECORDING = "host.json"
PACKAGES = "site-packages"  # below which a recording keeps what Host.packaged has read


@dataclass(frozen=True)
class Output(Record):
    """What a program printed, and its exit code (negative: ended by that signal; None: it ran past its time limit)."""

    stdout: str
    stderr: str = ""
    code: int | None = 0


@dataclass(frozen=True)
class EntryPoint(Record):
    """One line of a `[group]` in an installed distribution's entry_points.txt."""

    name: str
    value: str
    distribution: str


class Host:
    """This machine."""

    @cached_property
    def name(self) -> str | None:
        if hasattr(os, "uname"):
            return os.uname().nodename or None
        import socket  # 3 ms, and only Windows needs it

        return socket.gethostname() or None

    @property
    def system(self) -> str:
        """linux, darwin or win32."""
        return sys.platform

    @cached_property
    def machine(self) -> str:
        """The instruction set, as uname says it: x86_64, arm64, aarch64, AMD64."""
        if hasattr(os, "uname"):
            return os.uname().machine
        return self.env("PROCESSOR_ARCHITECTURE") or "unknown"

    @property
    def python(self) -> str:
        """Python's version, 3.11.9. A recorded host is taken to have the one that reads it: recordings do not tell."""
        return ".".join(map(str, sys.version_info[:3]))

    @property
    def cpu_count(self) -> int | None:
        """Logical CPUs of the machine, whether this process may use them or not."""
        return os.cpu_count()

    def env(self, name: str) -> str | None:
        return os.environ.get(name)

    def read(self, path: str) -> str | None:
        """The text of a file, undecodable bytes replaced; None where there is none or it may not be read."""
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):
            return None

    def names(self, folder: str) -> tuple[str, ...]:
        """The sorted names in a folder; empty where there is none."""
        try:
            return tuple(sorted(os.listdir(folder)))
        except OSError:
            return ()

    def link(self, path: str) -> str | None:
        """Where a symbolic link points, as it is written; None where there is none or it may not be read."""
        try:
            return str(Path(path).readlink())
        except (OSError, ValueError):
            return None

    def may_open(self, path: str) -> bool | None:
        """Whether this process may read and write a file; None where there is none."""
        try:
            return os.access(path, os.R_OK | os.W_OK) if Path(path).exists() else None
        except (OSError, ValueError):
            return None

    def affinity(self) -> tuple[int, ...] | None:
        """Ids of the logical CPUs this process may run on; None where the system has no such notion (macOS)."""
        if hasattr(os, "sched_getaffinity"):
            return tuple(sorted(os.sched_getaffinity(0)))
        return None

    def run(self, *argv: str, timeout: float = 5.0) -> Output | None:
        """Runs a program without a shell and returns what it printed; None where it is not installed."""
        import subprocess  # 11 ms, and most probes need no program

        try:
            done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            return Output("", f"no answer within {timeout:g} s", None)
        except OSError:
            return None
        return Output(done.stdout, done.stderr, done.returncode)

    def driver(self, reader: str) -> Any:
        """What a vendor's library tells: the JSON value that `reader` ("module:function" of a backend) returns on this machine.

        None where there is no such library. The function must not raise; a recorded host has its answer by its name.
        """
        module, _, function = reader.partition(":")
        return getattr(import_module(module), function)()

    def entry_points(self, group: str) -> tuple[EntryPoint, ...]:
        """Entry points of all installed distributions, read from their files: importlib.metadata costs five times as much."""
        found = [
            EntryPoint(name, value, distribution)
            for distribution, text in self._entry_point_files(f"[{group}]")
            for name, value in _section(text, group)
        ]
        return tuple(sorted(set(found), key=lambda e: (e.name, e.distribution)))

    def _entry_point_files(self, header: str) -> Iterator[tuple[str, str]]:
        for folder in dict.fromkeys(sys.path):
            for name in self.names(folder or "."):
                if name.endswith((".dist-info", ".egg-info")):
                    text = self.read(f"{folder or '.'}/{name}/entry_points.txt")
                    if text and header in text:
                        yield name.rsplit(".", 1)[0], text

    def version(self, distribution: str) -> str | None:
        """The installed version of a distribution, without importing it."""
        found = self._installed(distribution)
        return None if found is None else found[1]

    def requires(self, distribution: str) -> tuple[str, ...]:
        """What an installed distribution asks for (`libtpu==0.0.17; extra == "tpu"`), as its wheel says; empty if unknown."""
        found = self._installed(distribution)
        text = (self.read(f"{found[0]}/METADATA") or "") if found else ""
        head = text.partition("\n\n")[0].splitlines()  # the description follows, and may hold such lines too
        return tuple(line.partition(":")[2].strip() for line in head if line.startswith("Requires-Dist:"))

    def packaged(self, distribution: str, path: str) -> str | None:
        """The text of a file that an installed distribution has brought (`torch/version.py`); None where it is not there."""
        found = self._installed(distribution)
        return None if found is None else self.read(f"{found[0].rpartition('/')[0]}/{path}")

    def _installed(self, distribution: str) -> tuple[str, str] | None:
        """The .dist-info folder of a distribution, and its version."""
        wanted = _normal(distribution)
        for folder in dict.fromkeys(sys.path):
            for name in self.names(folder or "."):
                if name.endswith(".dist-info"):
                    stem, _, version = name.removesuffix(".dist-info").rpartition("-")
                    if _normal(stem) == wanted:
                        return f"{folder or '.'}/{name}", version
        return None


def _normal(distribution: str) -> str:
    """`-`, `_`, `.` and case make no difference between names of distributions."""
    return distribution.lower().replace("-", "_").replace(".", "_")


def _section(text: str, group: str) -> Iterator[tuple[str, str]]:
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            inside = line == f"[{group}]"
        elif inside and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()


@dataclass(frozen=True)
class Recording(Record):
    """A machine on paper: everything that probes asked of it, and the answers.

    `denied` are the files that this process might not read and write; `requires` is by distribution, as `versions` is;
    `drivers` is what vendors' libraries told, by reader (Host.driver).
    """

    name: str | None = None
    system: str = "linux"
    machine: str = "x86_64"
    cpu_count: int | None = None
    affinity: tuple[int, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, Output] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    entry_points: tuple[EntryPoint, ...] = ()
    about: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    denied: tuple[str, ...] = ()
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drivers: Mapping[str, Any] = field(default_factory=dict)


class RecordedHost(Host):
    """A machine that answers from a Recording. A file's folders exist because the file does."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    @classmethod
    def load(cls, folder: Path | str) -> RecordedHost:
        """Reads `folder/host.json`. Raises UsageError when it is not there or is not a recording."""
        path = Path(folder) / RECORDING
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"no recorded host at {folder}", where=str(path), why=error.strerror) from None
        return cls(Recording.from_json(text, str(path)))

    @property
    def name(self) -> str | None:
        return self.recording.name

    @property
    def system(self) -> str:
        return self.recording.system

    @property
    def machine(self) -> str:
        return self.recording.machine

    @property
    def cpu_count(self) -> int | None:
        return self.recording.cpu_count

    def env(self, name: str) -> str | None:
        return self.recording.env.get(name)

    def read(self, path: str) -> str | None:
        return self.recording.files.get(path)

    def names(self, folder: str) -> tuple[str, ...]:
        prefix = folder.rstrip("/") + "/"
        paths = (*self.recording.files, *self.recording.links)
        return tuple(sorted({path[len(prefix) :].split("/", 1)[0] for path in paths if path.startswith(prefix)}))

    def link(self, path: str) -> str | None:
        return self.recording.links.get(path)

    def may_open(self, path: str) -> bool | None:
        known = path in self.recording.files or path in self.recording.links
        return path not in self.recording.denied if known else None

    def affinity(self) -> tuple[int, ...] | None:
        return self.recording.affinity

    def run(self, *argv: str, timeout: float = 5.0) -> Output | None:
        return self.recording.commands.get(" ".join(argv))

    def driver(self, reader: str) -> Any:
        return self.recording.drivers.get(reader)

    def entry_points(self, group: str) -> tuple[EntryPoint, ...]:  # a recording keeps those of hwal.backends only
        return self.recording.entry_points

    def version(self, distribution: str) -> str | None:
        return self.recording.versions.get(distribution)

    def requires(self, distribution: str) -> tuple[str, ...]:
        return self.recording.requires.get(distribution, ())

    def packaged(self, distribution: str, path: str) -> str | None:
        return self.recording.files.get(f"{PACKAGES}/{path}") if self.version(distribution) is not None else None
