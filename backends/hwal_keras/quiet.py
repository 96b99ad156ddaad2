"""What TensorFlow's C++ writes while it is imported: notes on oneDNN and the CPU, which TF_CPP_MIN_LOG_LEVEL does not keep off
the terminal before its log is set up (TensorFlow 2.21). They are left out; errors come through, those of a process that dies of
one too, since another process passes them on. Imports no framework.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

LEVEL, ERRORS = "TF_CPP_MIN_LOG_LEVEL", ("2", "3")  # at these the user wants no more than errors
NOTES = r"WARNING: All log messages before absl|[IW]\d{4} [\d:.]+ "
NO_GPU = r"E\d{4} [\d:.]+ .*failed call to cuInit"  # no error where no GPU is wanted
PATIENCE = 1.0  # seconds in which what was written has been passed on
PASS_ON = r"""
import re, sys
left_out = re.compile("|".join(sys.argv[1:]).encode())
for line in sys.stdin.buffer:
    if not left_out.match(line):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


def install(environ: Mapping[str, str] = os.environ) -> None:
    """Has the import of TensorFlow, whenever the script comes to it, write errors only; where the user wants no more."""
    if environ.get(LEVEL) in ERRORS and "tensorflow" not in sys.modules:
        sys.meta_path.insert(0, Quiet())


class Quiet(MetaPathFinder):
    """Finds TensorFlow as the others do, once, and has it loaded quietly."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def quietly(module: ModuleType) -> None:
                with errors_only():
                    load(module)

            spec.loader.exec_module = quietly  # type: ignore[method-assign]
        return spec


@contextmanager
def errors_only(*more: str) -> Iterator[None]:
    """Of what is written to the standard error within, C++'s log lines that are no errors are left out, and what begins with
    `more`, regular expressions."""
    before = os.dup(2)
    passing = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", PASS_ON, NOTES, *more], stdin=subprocess.PIPE, stderr=before, start_new_session=True
    )
    assert passing.stdin is not None
    os.dup2(passing.stdin.fileno(), 2)
    passing.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
        with suppress(subprocess.TimeoutExpired):  # a process that was started within may hold the pipe for long
            passing.wait(PATIENCE)
