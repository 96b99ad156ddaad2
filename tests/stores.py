"""A checkpoint store to try: what tests of it write into it, and what they hear."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hwal.checkpoint import Checkpoints, Manifest, Position


def manifest(step: int) -> object:
    return lambda files: Manifest(
        Position(42, 0, 0, step, step * 8, step, step * 8, 1), files, "torch", about={"note": [1.5, None]}
    )


def write(store: Checkpoints, step: int, text: str | None = None, target: Path | None = None) -> Path:
    target = target or store.path(step)
    with store.writing(target, manifest(step)) as folder:  # type: ignore[arg-type]
        (folder / "weights").write_text(text or f"weights of {step}", encoding="utf-8")
        (folder / "deep").mkdir()
        (folder / "deep" / "er").write_bytes(bytes(range(256)))
    return target


def names(store: Checkpoints) -> list[str]:
    """Everything in the folder, hidden things too."""
    return sorted(path.name for path in store.folder.iterdir())


class Told(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid
