"""Which slice this host is part of, and which of its workers it is: from TPU_* variables, or from the metadata server if asked.

GKE sets the variables in a pod; Colab and Kaggle in a notebook. On a TPU VM of its own only the metadata server knows, which
hwal asks under HWAL_TPU_METADATA=1 (libtpu asks it by itself, unless TPU_SKIP_MDS_QUERY is set).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hwal.env import TPU_METADATA
from hwal.host import Host

METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes"
PRODUCT = "/sys/class/dmi/id/product_name"
Bounds = tuple[int, int, int]


class Slice(NamedTuple):
    """A slice as one of its workers knows it; None and () where nobody says.

    Attributes:
        kind: the accelerator's type (`v5litepod-16`). topology: `4x4`, of the chips of the whole slice.
        worker: this host's number. hosts: names or addresses of all, in the order of their numbers.
        chip_bounds, host_bounds: the chips of one host, and the hosts, as they lie on the torus (x, y, z).
        slices, slice_index: of several slices that train together over the data centre's network.
        source: "text" (variables), "driver" (the metadata server).
    """

    kind: str | None = None
    topology: str | None = None
    worker: int | None = None
    hosts: tuple[str, ...] = ()
    chip_bounds: Bounds | None = None
    host_bounds: Bounds | None = None
    slices: int | None = None
    slice_index: int | None = None
    source: str | None = None

    @property
    def is_multi_host(self) -> bool:
        return len(self.hosts) > 1


def read_slice(host: Host) -> Slice:
    """What the variables say; what they leave open, the metadata server says where it may be asked."""
    told = _from_variables(host)
    return _from_metadata(host, told) if asks_metadata(host) else told


def asks_metadata(host: Host) -> bool:
    return (host.env(TPU_METADATA) or "0").strip().lower() not in ("", "0", "off", "false", "no")


def on_compute_engine(host: Host) -> bool:
    """Whether this is a virtual machine of Google's, not in Kubernetes or a notebook, so with a metadata server of its own."""
    product = (host.read(PRODUCT) or "").strip()
    return product == "Google Compute Engine" and not host.env("TPU_SKIP_MDS_QUERY")


def bounds(text: str | None) -> Bounds | None:
    """`2,2,1` -> the numbers."""
    match = re.fullmatch("([0-9]{1,4}),([0-9]{1,4}),([0-9]{1,4})", (text or "").strip())
    numbers = (int(match[1]), int(match[2]), int(match[3])) if match else (0, 0, 0)
    return numbers if all(numbers) else None


def _from_variables(host: Host) -> Slice:
    env = host.env
    kind, hosts = _word(env("TPU_ACCELERATOR_TYPE")), _names(env("TPU_WORKER_HOSTNAMES"))
    worker = _number(env("TPU_WORKER_ID"))
    return Slice(
        kind,
        _topology(env("TPU_TOPOLOGY")),
        worker if worker is not None else _number(env("CLOUD_TPU_TASK_ID")),
        hosts,
        bounds(env("TPU_CHIPS_PER_HOST_BOUNDS")),
        bounds(env("TPU_HOST_BOUNDS")),
        _number(env("MEGASCALE_NUM_SLICES")),
        _number(env("MEGASCALE_SLICE_ID")),
        "text" if kind or hosts or worker is not None else None,
    )


def _from_metadata(host: Host, told: Slice) -> Slice:
    rows = dict(re.findall(r"^([A-Z_]{1,60}): *'?([^'\n]{0,4000})'?$", _ask(host, "tpu-env"), re.M))
    if not rows:
        return told
    # `NAME:UID:ADDRESS`, separated by commas, in the order of the workers
    workers = [part.split(":") for part in _ask(host, "worker-network-endpoints").strip().split(",")]
    hosts = tuple(parts[2] for parts in workers if len(parts) > 2 and _word(parts[2]))
    return Slice(
        told.kind or _word(rows.get("ACCELERATOR_TYPE")),
        told.topology or _topology(rows.get("TOPOLOGY")),
        told.worker if told.worker is not None else _number(rows.get("WORKER_ID")),
        told.hosts or (hosts if len(hosts) == len(workers) else ()),
        told.chip_bounds or bounds(rows.get("CHIPS_PER_HOST_BOUNDS")),
        told.host_bounds or bounds(rows.get("HOST_BOUNDS")),
        told.slices,
        told.slice_index,
        told.source or "driver",
    )


def _ask(host: Host, key: str) -> str:
    output = host.run("curl", "-sf", "-m", "2", "-H", "Metadata-Flavor: Google", f"{METADATA}/{key}", timeout=3.0)
    return output.stdout if output is not None and output.code == 0 else ""


def _word(text: str | None) -> str | None:
    """A name without blanks or control characters."""
    text = (text or "").strip()
    return text if re.fullmatch(r"[\w.:\-\[\]]{1,255}", text, re.ASCII) else None


def _names(text: str | None) -> tuple[str, ...]:
    """`t1v-0,t1v-1` -> the names; empty where one of them is none."""
    names = [_word(part) for part in (text or "").split(",")]
    return tuple(name for name in names if name) if all(names) else ()


def _number(text: str | None) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,6}", (text or "").strip(), re.ASCII) and text else None


def _topology(text: str | None) -> str | None:
    text = (text or "").strip().lower()
    return text if re.fullmatch("[0-9]{1,4}(x[0-9]{1,4}){1,2}", text) else None
