"""Backend names -> backends. Built-ins first; then plug-ins, entry points of group `hwal.backends`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

from hwal.backend import Backend
from hwal.errors import HwalError
from hwal.host import Host
from hwal.values import Probe

GROUP = "hwal.backends"

BUILT_IN: Mapping[str, str] = {
    "cuda": "hwal_cuda:backend",
    "rocm": "hwal_rocm:backend",
    "cpu": "hwal_cpu:backend",
    "tpu": "hwal_tpu:backend",
    "null": "hwal_null:backend",
}


@dataclass(frozen=True)
class Row:
    """A name and where its backend comes from: `target` is "module:attribute", `origin` is "hwal" or a plug-in's package."""

    name: str
    target: str
    origin: str

    def load(self) -> Backend:
        """Imports the backend. Raises whatever its import raises, and TypeError when it is no Backend."""
        module, _, attribute = self.target.partition(":")
        backend = getattr(import_module(module), attribute or "backend")
        if not isinstance(backend, Backend):
            raise TypeError(f"{self.target} is a {type(backend).__name__}, not a hwal.backend.Backend")
        if backend.name != self.name:
            raise TypeError(f"{self.target} calls itself {backend.name!r}, its entry point {self.name!r}")
        return backend


class Registry:
    """The backends known on a host. A name stays its first owner's, built-ins first; each clash is a blocked probe."""

    def __init__(self, host: Host) -> None:
        self.rows: dict[str, Row] = {name: Row(name, target, "hwal") for name, target in BUILT_IN.items()}
        self.clashes: list[Row] = []
        for entry in host.entry_points(GROUP):
            row = Row(entry.name, entry.value, entry.distribution)
            if entry.name in self.rows:
                self.clashes.append(row)
            else:
                self.rows[entry.name] = row

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.rows)

    def load(self, name: str) -> Backend:
        """The backend of a known name. Raises HwalError when its import fails."""
        row = self.rows[name]
        try:
            return row.load()
        except Exception as error:
            raise HwalError(
                f"backend {name!r} cannot be loaded: {type(error).__name__}: {error}",
                where=f"{row.target}, from {row.origin}",
                hint=f"pip uninstall {row.origin}, or mend it" if row.origin != "hwal" else "reinstall hwal",
            ) from error

    def backends(self) -> Iterator[Backend | Probe]:
        """Every backend; in place of one that cannot be loaded, and of each clash, a blocked Probe that says why."""
        for name in self.rows:
            try:
                yield self.load(name)
            except HwalError as error:
                yield Probe(name, "blocked", f"{error.what} ({error.where})", error.hint)
        for row in self.clashes:
            yield Probe(
                row.name,
                "blocked",
                f"{row.origin} offers a backend named {row.name!r}, which is {self.rows[row.name].origin}'s",
                f"the one of {self.rows[row.name].origin} is used; pip uninstall {row.origin}, or rename its entry point",
            )
