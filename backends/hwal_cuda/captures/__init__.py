"""What NVIDIA's tools print, read back as the probe that the machine would have given."""

from __future__ import annotations

from collections.abc import Callable

from hwal.values import Probe
from hwal_cuda.captures import lists, matrix, pci, query

Reader = Callable[[list[str], str], Probe | None]

READERS: tuple[Reader, ...] = (query.read_xml, query.read_text, matrix.read, lists.read_gpus, lists.read_csv, pci.read_lspci)


def read(text: str, where: str) -> Probe | None:
    """The GPUs in `text`; None where no NVIDIA tool prints such a thing. Raises RecordError naming the line that is damaged."""
    found = pci.read_tree(text, where)
    if found is not None:
        return found
    lines = text.splitlines()
    for reader in READERS:
        found = reader(lines, where)
        if found is not None:
            return found
    return None
