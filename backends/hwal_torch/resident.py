"""Memory of this process (hwal.resident), by the name that torch runtimes know it by."""

from __future__ import annotations

from hwal.resident import peak_resident_bytes, resident_bytes

__all__ = ["peak_resident_bytes", "resident_bytes"]
