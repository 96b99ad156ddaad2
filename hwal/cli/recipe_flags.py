"""The built-in recipe's own flags, looked at before a plan is made and a framework loaded: as far as needs none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hwal.errors import UsageError, VersionError, nearest
from hwal.host import Host

PRESETS = ("tiny", "small", "gpt2")
EIGHT_BIT = ("bitsandbytes", "torchao")  # the packages that have an 8-bit AdamW


def check_recipe(flags: Mapping[str, Any]) -> None:
    """Raises UsageError for a text or model that is not there, VersionError for an optimizer whose package is not."""
    if (data := flags.get("data")) is not None:
        from hwal.texts import files_of

        files_of(data)
    model = flags.get("model")
    if model is not None and model not in PRESETS and not Path(model).expanduser().exists():
        near = nearest(model, PRESETS)
        raise UsageError(
            f"no model {model!r}: neither a preset ({', '.join(PRESETS)}) nor a path",
            where=f"--model {model}",
            why="hwal downloads nothing: fetch a model's folder first, and name the folder" if "/" in model else None,
            hint=f"--model {near}" if near else "--model tiny, or the folder or config.json of a transformers model",
        )
    if flags.get("optimizer") == "adamw8bit" and not any(Host().version(package) for package in EIGHT_BIT):
        raise VersionError(
            "no package here has an 8-bit AdamW",
            where="--optimizer adamw8bit",
            why=f"neither {' nor '.join(EIGHT_BIT)} is installed",
            hint="pip install torchao, or --optimizer adamw",
        )
