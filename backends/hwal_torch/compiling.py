"""--compile: torch.compile of each block's forward. Blocks of a class share the code, so that it is compiled once and not
once a layer, and hooks around a block (FSDP's, say) stay outside of it."""

from __future__ import annotations

import errno
import os
import re
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hwal.errors import OutputError, VersionError
from hwal_torch.blocks import Blocks, class_name
from hwal_torch.forward import Forward
from hwal_torch.no_cache import train_without_cache


def compile_blocks(model: nn.Module, blocks: Blocks, device: torch.device) -> str:
    """Has the model's blocks compiled, or all of it where there are none; returns what to say of it.

    In place: names, copies and the script's own object stay. Called after fully_shard, which gives the blocks other classes,
    and before recompute_blocks, so that what is recomputed is compiled.

    Raises VersionError when what torch needs for it on this kind of device is missing.
    """
    check_compiler(device)
    # torch would split the code where DDP's buckets end. A block is smaller than a bucket, and split code cannot recompute.
    torch._dynamo.config.optimize_ddp = False
    train_without_cache(model)
    for part in blocks.outermost or (model,):
        _Compiled(part)
    what = blocks.why if blocks.modules else f"{class_name(model)} as a whole ({blocks.why})"
    return f"compiled in the first steps, which take longer: {what}; dropout draws other random numbers than without --compile"


class _Compiled(Forward):
    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.compiled = torch.compile(self.original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled(*args, **kwargs)


def check_compiler(device: torch.device) -> None:
    """Raises VersionError when torch.compile cannot work here. It would say so too, but in the first step, and at length."""
    where = "--compile"
    if not torch._dynamo.is_dynamo_supported():  # type: ignore[attr-defined]
        raise VersionError(
            f"torch {torch.__version__} cannot compile under this Python", where=where, hint="another Python, or no --compile"
        )
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise VersionError(
                "torch.compile needs Triton for this device, and it is not installed", where=where, hint="pip install triton"
            )
    if device.type != "cpu":
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise VersionError(
            "torch.compile needs a C++ compiler on a CPU, and there is none",
            where=where,
            why="looked for $CXX, else g++ (Linux), clang++ (macOS), cl (Windows)",
            hint="apt install g++ (macOS: xcode-select --install), or no --compile",
        ) from None
    headers = Path(sysconfig.get_path("include"))
    if sys.platform == "linux" and not (headers / "Python.h").exists():
        raise VersionError(
            "torch.compile needs Python's headers on a CPU, and they are not installed",
            where=where,
            why=f"there is no {headers / 'Python.h'}",
            hint="apt install python3-dev, or no --compile",
        )


def no_room(error: BaseException | None) -> OutputError | None:
    """The words for a compiler that could not write what it made; None for any other error."""
    if not type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
        return None
    found = re.search(r"OSError: \[Errno (\d+)\] ([^:\n]+)", str(error))
    if found is None or int(found[1]) not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
        return None
    return OutputError(
        f"torch.compile cannot write what it compiles: {found[2]}",
        where=os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir(),
        hint="free space; another folder by TORCHINDUCTOR_CACHE_DIR or TMPDIR; or no --compile",
    )
