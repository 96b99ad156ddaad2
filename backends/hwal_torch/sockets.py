"""Whether a loader's workers can hand over what they read. A worker that cannot says so by itself only, and its run waits."""

from __future__ import annotations

import os
import socket
import tempfile
from multiprocessing.connection import arbitrary_address  # type: ignore[attr-defined]

from hwal.errors import UsageError


def check_sockets() -> None:
    """Binds a socket where multiprocessing would, for tensors that pass from one process to another. Raises UsageError."""
    if not hasattr(socket, "AF_UNIX"):  # Windows
        return
    path = arbitrary_address("AF_UNIX")
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(path)
        os.unlink(path)  # noqa: PTH108  # a socket's name, which no Path is made of
    except OSError as error:
        raise UsageError(
            "a DataLoader's workers could not hand over what they read: they need a socket in the temporary folder",
            where=f"TMPDIR={tempfile.gettempdir()}",
            why=f"{path}: {error.strerror or error}" + f" ({len(os.fsencode(path))} bytes)" * (error.errno is None),
            hint="TMPDIR=/tmp, or another short path; num_workers=0 needs none",
        ) from None
