"""Memory of this process, where a device has none of its own: the host's."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def resident_bytes() -> int | None:
    """Resident memory of this process now; None where the system does not say (Linux does)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int | None:
    """The most that was resident at one time; None on Windows."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kilobytes, but on macOS
