"""Whether the packages that drive a TPU are here and fit each other, from their wheels' own words: nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from hwal.host import Host

TESTED = "2.8.1"
KNOWN = ("2.8", "2.9")  # torch_xla's last; torch_tpu follows it
INSTALL = f"in an environment of its own: pip install 'torch=={TESTED.rpartition('.')[0]}.*' 'torch_xla[tpu]=={TESTED}'"
DRIVES = ("tensorflow-tpu",)  # what drives chips of this machine for Keras
TENSORFLOW = (*DRIVES, "tensorflow", "tensorflow-cpu")
LIBRARIES = ("TPU_LIBRARY_PATH", "PTXLA_TPU_LIBRARY_PATH")  # variables that name a libtpu.so


class Trouble(NamedTuple):
    """Why the hardware cannot be used, and what to type."""

    reason: str
    hint: str


def platform_trouble(host: Host, wanted: str) -> Trouble | None:
    """PJRT_DEVICE, set by the user to another platform than `wanted`: what the user has set stays, so it must not be there."""
    platform = (host.env("PJRT_DEVICE") or "").strip()
    if not platform or platform.upper() == wanted:
        return None
    return Trouble(
        f"PJRT_DEVICE={shown(platform)} in your environment keeps XLA off {'it' if wanted == 'TPU' else 'its CPU platform'}",
        "unset PJRT_DEVICE: hwal sets what the device needs",
    )


def torch_xla_trouble(host: Host) -> Trouble | None:
    """torch_xla that is missing, older than hwal's, or built for another torch than is installed."""
    xla, torch = host.version("torch_xla"), host.version("torch")
    if xla is None:
        return _successor(host) or Trouble("torch_xla is not installed", INSTALL)
    built_for = minor(xla)
    if built_for is None:
        return Trouble(f"torch_xla is installed, in a version that cannot be read: {shown(xla)}", INSTALL)
    if built_for not in KNOWN:
        return Trouble(f"torch_xla {xla} is installed; hwal runs on {' and '.join(KNOWN)}", INSTALL)
    if torch is None:
        return Trouble(
            f"torch is not installed; torch_xla {xla} needs torch {built_for}", f"pip install 'torch=={built_for}.*'"
        )
    if minor(torch) != built_for:
        also = f"; {told}" if (told := _torch_tpu(host)) else ""
        return Trouble(
            f"torch_xla {xla} is built for torch {built_for}, and torch {shown(torch)} is installed{also}",
            f"pip install 'torch=={built_for}.*'",
        )
    return None


def tensorflow_alone(host: Host, names: Sequence[str] = TENSORFLOW) -> str | None:
    """`tensorflow-cpu 2.21.0`, where TensorFlow is installed, and neither torch_xla nor its successor: Keras can train then."""
    if host.version("torch_xla") is not None or host.version("torch_tpu") is not None:
        return None
    return next((f"{name} {shown(version)}" for name in names if (version := host.version(name)) is not None), None)


def libtpu_trouble(host: Host) -> Trouble | None:
    """libtpu that is missing, or another than torch_xla was built with. One that a variable names is taken at its word."""
    if any(host.env(name) for name in LIBRARIES):
        return None
    xla = host.version("torch_xla")
    wanted = libtpu_wanted(host)
    install = f"pip install {f'libtpu=={wanted}' if wanted else f'torch_xla[tpu]=={xla}'!r}"
    libtpu = host.version("libtpu")
    if libtpu is None:
        return (
            None if host.version("libtpu-nightly") else Trouble("libtpu, the TPU's driver library, is not installed", install)
        )
    if wanted is not None and not _fits(libtpu, wanted):
        also = f"; {told}" if (told := _torch_tpu(host)) else ""
        return Trouble(f"torch_xla {xla} is built for libtpu {wanted}, and libtpu {shown(libtpu)} is installed{also}", install)
    return None


def libtpu_wanted(host: Host) -> str | None:
    """The version of libtpu in torch_xla's extra `tpu`; None where it names none."""
    for line in host.requires("torch_xla"):
        if match := re.match(r"libtpu *\(?== *([0-9][0-9.]{0,20})", line):
            return match[1].rstrip(".")
    return None


def minor(version: str | None) -> str | None:
    """`2.8.0+cu128` -> `2.8`."""
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", version or "")
    return f"{int(match[1])}.{int(match[2])}" if match else None


def shown(text: str) -> str:
    """A version or a name as it is, where it looks like one."""
    return text if re.fullmatch(r"[\w.+!\-]{1,40}", text, re.ASCII) else f"{text!r:.40}"


def _fits(version: str, wanted: str) -> bool:
    """0.0.17.1 is a 0.0.17 with something mended."""
    return version == wanted or version.startswith(f"{wanted}.") or not version[:1].isdigit()


def _torch_tpu(host: Host) -> str | None:
    version = host.version("torch_tpu")
    if version is None:
        return None
    asks = [line.partition(";")[0].strip() for line in host.requires("torch_tpu")]
    needs = [line for line in asks if re.match("(torch|libtpu)[<>=! ]", line)]
    return f"torch_tpu {shown(version)} is here too" + (f", which wants {' and '.join(needs)}" if needs else "")


def _successor(host: Host) -> Trouble | None:
    """torch_tpu without torch_xla: known, and not yet driven."""
    if host.version("torch_tpu") is None:
        return None
    told = (_torch_tpu(host) or "").replace(" is here too", " is installed")
    return Trouble(f"{told}; it follows torch_xla, and hwal's runtime for it is still to come", INSTALL)
