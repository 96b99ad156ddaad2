"""hwal: one training script, any hardware. A script needs `hwal.start()`; everything else is the command line's."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hwal.worker import start

__all__ = ["__version__", "start"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`start` on first use, so that the command line need not pay for it."""
    if name == "start":
        from hwal.worker import start

        return start
    raise AttributeError(f"module 'hwal' has no attribute {name!r}")
