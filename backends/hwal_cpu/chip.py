"""Which CPU it is, and what its units compute natively: tables over what /proc/cpuinfo says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

X86 = ("x86_64", "AMD64", "amd64", "i386", "i686")
ARM = ("aarch64", "arm64", "ARM64")

# Family 6 unless said otherwise; from the kernel's table of Intel models.
INTEL: Mapping[int, str] = {
    0x3F: "haswell",
    0x4F: "broadwell",
    0x55: "skylake-server",
    0x56: "broadwell",
    0x4E: "skylake",
    0x5E: "skylake",
    0x6A: "ice-lake-server",
    0x6C: "ice-lake-server",
    0x7D: "ice-lake",
    0x7E: "ice-lake",
    0x8C: "tiger-lake",
    0x8D: "tiger-lake",
    0x8E: "kaby-lake",
    0x8F: "sapphire-rapids",
    0x97: "alder-lake",
    0x9A: "alder-lake",
    0x9E: "kaby-lake",
    0xA5: "comet-lake",
    0xA6: "comet-lake",
    0xA7: "rocket-lake",
    0xAA: "meteor-lake",
    0xAC: "meteor-lake",
    0xAD: "granite-rapids",
    0xAE: "granite-rapids",
    0xAF: "sierra-forest",
    0xB5: "arrow-lake",
    0xB7: "raptor-lake",
    0xBA: "raptor-lake",
    0xBD: "lunar-lake",
    0xBF: "raptor-lake",
    0xC5: "arrow-lake",
    0xC6: "arrow-lake",
    0xCC: "panther-lake",
    0xCF: "emerald-rapids",
}

# (family, first model, last model); from the kernel's table of AMD generations.
AMD: Mapping[tuple[int, int, int], str] = {
    (0x17, 0x00, 0x2F): "zen",
    (0x17, 0x30, 0x4F): "zen2",
    (0x17, 0x50, 0x5F): "zen",
    (0x17, 0x60, 0xAF): "zen2",
    (0x19, 0x00, 0x0F): "zen3",
    (0x19, 0x10, 0x1F): "zen4",
    (0x19, 0x20, 0x5F): "zen3",
    (0x19, 0x60, 0xAF): "zen4",
    (0x1A, 0x00, 0x4F): "zen5",
    (0x1A, 0x50, 0x5F): "zen6",
    (0x1A, 0x60, 0x7F): "zen5",
    (0x1A, 0x80, 0xCF): "zen6",
}

# (implementer, part) -> maker, core.
ARM_CORES: Mapping[tuple[int, int], tuple[str, str]] = {
    (0x41, 0xD03): ("ARM", "Cortex-A53"),
    (0x41, 0xD08): ("ARM", "Cortex-A72"),
    (0x41, 0xD0B): ("ARM", "Cortex-A76"),
    (0x41, 0xD0C): ("ARM", "Neoverse-N1"),
    (0x41, 0xD40): ("ARM", "Neoverse-V1"),
    (0x41, 0xD49): ("ARM", "Neoverse-N2"),
    (0x41, 0xD4F): ("ARM", "Neoverse-V2"),
    (0x41, 0xD84): ("ARM", "Neoverse-V3"),
    (0x41, 0xD8E): ("ARM", "Neoverse-N3"),
    (0x46, 0x001): ("Fujitsu", "A64FX"),
    (0x48, 0xD01): ("HiSilicon", "TSV110"),
    (0xC0, 0xAC3): ("Ampere", "Ampere-1"),
    (0xC0, 0xAC4): ("Ampere", "Ampere-1a"),
}

# precision -> (flags that must all be there, the unit), best first.
UNITS: Mapping[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "fp32": ((("avx512f",), "AVX512"), (("avx2",), "AVX2"), (("avx",), "AVX"), (("sse2",), "SSE"), (("asimd",), "NEON")),
    "bf16": ((("amx_tile", "amx_bf16"), "AMX-BF16"), (("avx512_bf16",), "AVX512-BF16"), (("bf16",), "NEON-BF16")),
    "fp16": ((("amx_tile", "amx_fp16"), "AMX-FP16"), (("avx512_fp16",), "AVX512-FP16"), (("asimdhp",), "NEON-FP16")),
}


class Chip(NamedTuple):
    """`native` as Device.native; `sources` say where each field came from."""

    name: str | None
    arch: str | None
    native: Mapping[str, str]
    sources: Mapping[str, str]


def read_chip(cpuinfo: str, machine: str) -> Chip:
    """The chip of /proc/cpuinfo's first processor; a machine's processors differ in speed, not in what they can do."""
    rows: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        if not line.strip() and rows:
            break
        key, colon, value = line.partition(":")
        if colon:
            rows[key.strip()] = value.strip()
    flags = frozenset((rows.get("flags") or rows.get("Features") or "").split())
    native = native_units(flags, machine)
    sources = {"native": "procfs" if flags else "guess"}
    name, arch = (_arm if machine in ARM else _x86)(rows)
    if name:
        sources["name"] = "table" if machine in ARM else "procfs"
    if arch:
        sources["arch"] = "table"
    return Chip(name, arch, native, sources)


def native_units(flags: frozenset[str], machine: str) -> dict[str, str]:
    """precision -> unit. fp32 is computed by every CPU: by what its instruction set always has, where flags are unknown."""
    native = {"fp32": "SSE" if machine in X86 else "NEON" if machine in ARM else machine}
    for precision, units in UNITS.items():
        for needs, unit in units:
            if flags.issuperset(needs):
                native[precision] = unit
                break
    return native


def _x86(rows: Mapping[str, str]) -> tuple[str | None, str | None]:
    name = rows.get("model name", "")
    vendor, family, model = rows.get("vendor_id"), _number(rows.get("cpu family")), _number(rows.get("model"))
    arch = None
    if family is not None and model is not None:
        if vendor == "GenuineIntel" and family == 6:
            arch = INTEL.get(model)
            if arch == "skylake-server":
                stepping = _number(rows.get("stepping")) or 0
                arch = "cooper-lake" if stepping >= 10 else "cascade-lake" if stepping >= 5 else arch
        elif vendor == "AuthenticAMD":
            arch = next((arch for (f, first, last), arch in AMD.items() if f == family and first <= model <= last), None)
    return (None if name.lower() in ("", "unknown") else name), arch


def _arm(rows: Mapping[str, str]) -> tuple[str | None, str | None]:
    implementer, part = _number(rows.get("CPU implementer")), _number(rows.get("CPU part"))
    if implementer is None or part is None or (implementer, part) not in ARM_CORES:
        return None, None
    maker, core = ARM_CORES[implementer, part]
    return f"{maker} {core}", core.lower()


def _number(text: str | None) -> int | None:
    """A decimal or 0x number; None for anything else."""
    try:
        return int(text or "", 0)
    except ValueError:
        return None
