"""detect: every backend is asked whether its hardware is here. Never raises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter

from hwal.backend import Backend
from hwal.errors import UsageError
from hwal.host import Host, RecordedHost
from hwal.registry import Registry
from hwal.values import HostFacts, Machine, Probe, Target


def detect(host: Host, registry: Registry, target: Target | None = None) -> tuple[Probe, ...]:
    """One Probe for each backend. The backend that `target` names is told the target."""
    probes = []
    for backend in registry.backends():
        if isinstance(backend, Probe):
            probes.append(backend)
            continue
        asked = target if target is not None and target.backend == backend.name else None
        probes.append(ask(backend, host, asked))
    return tuple(probes)


def ask(backend: Backend, host: Host, asked: Target | None) -> Probe:
    """What one backend says; a defect of it is a reason that blocks it."""
    begun = perf_counter()
    try:
        probe = backend.probe(host, asked)
        if not isinstance(probe, Probe) or probe.backend != backend.name:
            raise TypeError(f"it answered {probe!r:.60}, not a Probe of {backend.name!r}")
    except Exception as error:
        probe = Probe(
            backend.name,
            "blocked",
            f"its probe failed: {type(error).__name__}: {error}",
            "this is a defect of the backend: please report it with the output of hwal devices --json",
        )
    return replace(probe, ms=round((perf_counter() - begun) * 1e3, 3))


def facts(host: Host) -> HostFacts:
    return HostFacts(host.name, host.system, host.machine)


def read_machine(path: str) -> Machine | RecordedHost:
    """A machine from a file of `hwal devices --json` or of a vendor's tool, or a recorded host from its folder.

    Raises UsageError.
    """
    source = Path(path)
    if source.is_dir():
        return RecordedHost.load(source)
    try:
        text = _decoded(source.read_bytes(), path)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", hint="hwal devices --json > FILE writes such a file"
        ) from None
    if '"probes"' not in text:
        from hwal.paste import tidy

        pasted = tidy(text)
        for backend in Registry(Host()).backends():
            captured = None if isinstance(backend, Probe) else backend.capture(pasted, path)
            if captured is not None:
                return Machine(HostFacts(None, "unknown", "unknown"), (captured,))
    if text.lstrip()[:1] == "{":
        return Machine.from_json(text, path)
    number, line = next(((i, line.strip()) for i, line in enumerate(text.splitlines(), 1) if line.strip()), (1, ""))
    raise UsageError(
        f"not a file that hwal or a vendor's tool wrote: it {f'begins with {line[:60]!r}' if line else 'is empty'}",
        where=f"{path}, line {number}",
        hint="hwal devices --json, nvidia-smi topo -m or amd-smi topology write such a file; hwal devices --help names all",
    )


def _decoded(content: bytes, path: str) -> str:
    """UTF-8; or UTF-16, as PowerShell writes what is redirected. Raises UsageError naming the line that is neither."""
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"cannot read {path}: it is not text in {encoding.upper().removesuffix('-SIG')}",
            where=f"{path}, line {line}",
            hint="save it as UTF-8; hwal devices --help names what can be read",
        ) from None
