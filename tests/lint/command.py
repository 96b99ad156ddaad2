"""What the tests of the command share: a program with findings, one without, and what a run says."""

from __future__ import annotations

import json
from collections.abc import Callable

BAD = """\
import tensorflow as tf


@tf.function(jit_compile=True)
def f(x, n):
    tf.print(x)
    return tf.zeros([n, 2])
"""
GOOD = """\
import tensorflow as tf


@tf.function(jit_compile=True)
def f(x):
    return x * 2.0
"""

Lint = Callable[..., tuple[int, str, str]]
"""Runs `hwal lint` in an empty folder; exit code, stdout, stderr."""


def found(out: str) -> list[tuple[str, int, str]]:
    return [(one["code"], one["line"], one["severity"]) for one in json.loads(out)["findings"]]
