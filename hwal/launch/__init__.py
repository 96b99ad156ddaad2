"""launch: a Plan and a Request -> the Launch that carries it out (build, pure), and the engines that do (run)."""

from __future__ import annotations

from hwal.launch.build import ENGINES, build
from hwal.launch.engines import run

__all__ = ["ENGINES", "build", "run"]
