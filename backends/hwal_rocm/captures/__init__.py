"""What AMD's tools print, read back as the probe that the machine would have given.

Hops are not read: they are 1 for any path over xGMI. A link's worth is its class, the speed where amd-smi tells one, and the
driver's weight.
"""

from __future__ import annotations

import re

from hwal.values import Probe
from hwal_rocm.captures import amd_smi, other, tables


def read(text: str, where: str) -> Probe | None:
    """The GPUs in `text`; None where no AMD tool prints such a thing. Raises RecordError naming the line that is damaged."""
    if re.search(r"<system\b", text[:2000]) and re.search(r'\bgcn="|<xgmi\b|\bclass="0x(?:0380|1200)', text):
        return other.read_tree(text, where)
    start = text.lstrip()[:1]
    if start == "[" and '"gpu"' in text and ('"link' in text or '"weight"' in text):
        return amd_smi.read(text, where)
    if start == "{" and "properties" in text and "simd_count" in text:
        return other.read_sysfs(text, where)
    lines = text.splitlines()
    if any(tables.TITLE.match(line.strip()) for line in lines):
        return tables.read(lines, where)
    return other.read_lspci(lines, where)
