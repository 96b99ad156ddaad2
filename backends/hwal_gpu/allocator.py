"""What torch's allocator of GPU memory is told by a variable."""

from __future__ import annotations

import re

from hwal.host import Host
from hwal.values import Decision

NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch takes the first that is set
COMMON = (2, 9)  # the torch that brought the last name, and since which the first is deprecated
SEGMENTS = "expandable_segments:True"
WHY = "memory that was freed in pieces of other sizes is used again (lengths that vary, --micro-batch auto)"


def version_of(text: str | None) -> tuple[int, int] | None:
    """(2, 13) of torch's version, `2.13.0+cu130`."""
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None


def expandable_segments(host: Host, since: tuple[int, int]) -> dict[str, Decision]:
    """Segments that grow, where the installed torch has them for these GPUs: from `since` on. Empty where it has not."""
    version = version_of(host.version("torch"))
    if version is None or version < since:
        return {}
    own = next((name for name in NAMES if host.env(name) is not None), None)
    return {own or (NAMES[-1] if version >= COMMON else NAMES[0]): Decision(SEGMENTS, WHY)}
