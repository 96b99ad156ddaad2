"""The XLA linter: what in a program will not compile, or compile again and again, before anything runs.

    from hwal.lint import check
    for found in check(source, target="tpu"):
        print(found.line, found.code, found.message)

`hwal lint` is the same from the command line. Everything but run.py, config.py, cache.py and discover.py is pure; no framework
is imported.
"""

from __future__ import annotations

from hwal.lint.diagnostic import Diagnostic, Edit, Fix
from hwal.lint.engine import Settings, check

__all__ = ["Diagnostic", "Edit", "Fix", "Settings", "check"]
