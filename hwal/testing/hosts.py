"""Recording a machine: everything that probes ask of it, written down, so that a RecordedHost answers the same elsewhere.

    record(Host(), backends, "tests/hosts/my-box")

A recording holds no more than was asked: no host name, and of the environment only the variables that probes read. Look
through host.json before you publish it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hwal.backend import Backend
from hwal.errors import HwalError, OutputError
from hwal.host import PACKAGES, RECORDING, EntryPoint, Host, Output, RecordedHost, Recording
from hwal.registry import GROUP


class RecordingHost(Host):
    """Answers as `live` does, and keeps every answer. `recording()` is what it has heard so far."""

    def __init__(self, live: Host) -> None:
        self.live = live
        self._env: dict[str, str] = {}
        self._files: dict[str, str] = {}
        self._listed: dict[str, tuple[str, ...]] = {}
        self._commands: dict[str, Output] = {}
        self._versions: dict[str, str] = {}
        self._entry_points: tuple[EntryPoint, ...] = ()
        self._links: dict[str, str] = {}
        self._denied: set[str] = set()
        self._requires: dict[str, tuple[str, ...]] = {}
        self._drivers: dict[str, Any] = {}

    @property
    def name(self) -> str | None:
        return self.live.name

    @property
    def system(self) -> str:
        return self.live.system

    @property
    def machine(self) -> str:
        return self.live.machine

    @property
    def cpu_count(self) -> int | None:
        return self.live.cpu_count

    def affinity(self) -> tuple[int, ...] | None:
        return self.live.affinity()

    def env(self, name: str) -> str | None:
        value = self.live.env(name)
        if value is not None:
            self._env[name] = value
        return value

    def read(self, path: str) -> str | None:
        text = self.live.read(path)
        if text is not None:
            self._files[path] = text
        return text

    def names(self, folder: str) -> tuple[str, ...]:
        names = self._listed[folder.rstrip("/")] = self.live.names(folder)
        return names

    def link(self, path: str) -> str | None:
        target = self.live.link(path)
        if target is not None:
            self._links[path] = target
        return target

    def may_open(self, path: str) -> bool | None:
        allowed = self.live.may_open(path)
        if allowed is not None:
            self._files.setdefault(path, "")
        if allowed is False:
            self._denied.add(path)
        return allowed

    def run(self, *argv: str, timeout: float = 5.0) -> Output | None:
        output = self.live.run(*argv, timeout=timeout)
        if output is not None:
            self._commands[" ".join(argv)] = output
        return output

    def version(self, distribution: str) -> str | None:
        version = self.live.version(distribution)
        if version is not None:
            self._versions[distribution] = version
        return version

    def requires(self, distribution: str) -> tuple[str, ...]:
        found = self.live.requires(distribution)
        if found:
            self._requires[distribution] = found
        return found

    def packaged(self, distribution: str, path: str) -> str | None:
        text = self.live.packaged(distribution, path)
        if text is not None:
            self._files[f"{PACKAGES}/{path}"] = text
            self.version(distribution)
        return text

    def driver(self, reader: str) -> Any:
        told = self.live.driver(reader)
        if told is not None:
            self._drivers[reader] = told
        return told

    def entry_points(self, group: str) -> tuple[EntryPoint, ...]:
        found = self.live.entry_points(group)
        if group == GROUP:
            self._entry_points = found
        return found

    def recording(self, about: str = "") -> Recording:
        files = dict(self._files)
        for folder, names in self._listed.items():
            for name in names:  # a folder is there because a file in it is; one that nobody read stands in as an empty file
                path = f"{folder}/{name}"
                if not any(known == path or known.startswith(path + "/") for known in (*files, *self._links)):
                    files[path] = ""
        return Recording(
            system=self.system,
            machine=self.machine,
            cpu_count=self.cpu_count,
            affinity=self.affinity(),
            env=dict(sorted(self._env.items())),
            files=dict(sorted(files.items())),
            commands=dict(sorted(self._commands.items())),
            versions=dict(sorted(self._versions.items())),
            entry_points=self._entry_points,
            about=about,
            links=dict(sorted(self._links.items())),
            denied=tuple(sorted(self._denied)),
            requires=dict(sorted(self._requires.items())),
            drivers=dict(sorted(self._drivers.items())),
        )


def record(host: Host, backends: Iterable[Backend], folder: Path | str, about: str = "") -> RecordedHost:
    """Probes `host` with all backends, writes what they asked to `folder/host.json` and reads it back.

    Raises OutputError when the file cannot be written, and HwalError when a backend answers differently on the recording
    than on the host (it asked something of the machine past its Host, or the machine changed meanwhile).
    """
    backends = tuple(backends)
    listener = RecordingHost(host)
    heard = {backend.name: backend.probe(listener) for backend in backends}
    path = Path(folder) / RECORDING
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(listener.recording(about).to_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the recording: {error.strerror}", where=str(path)) from None
    recorded = RecordedHost.load(folder)
    for backend in backends:
        again = backend.probe(recorded)
        if replace(again, ms=None) != replace(heard[backend.name], ms=None):
            raise HwalError(
                f"{backend.name} answers differently on its own recording",
                where=str(path),
                why=f"{heard[backend.name].reason!r} on the machine, {again.reason!r} on the recording",
                hint="its probe must ask its Host for everything it looks at",
            )
    return recorded


def load_all(folder: Path | str) -> dict[str, RecordedHost]:
    """Every recorded host in the folders below `folder`, by the folder's name."""
    return {path.parent.name: RecordedHost.load(path.parent) for path in sorted(Path(folder).glob(f"*/{RECORDING}"))}


def bare_hosts() -> dict[str, RecordedHost]:
    """Machines that answer nothing: one for each system and instruction set that hwal meets."""
    kinds = (("linux", "x86_64"), ("linux", "aarch64"), ("linux", "riscv64"), ("darwin", "arm64"), ("darwin", "x86_64"))
    return {
        f"{system}-{machine}": RecordedHost(Recording(system=system, machine=machine))
        for system, machine in (*kinds, ("win32", "AMD64"), ("freebsd14", "amd64"))
    }
