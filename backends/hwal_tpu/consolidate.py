"""One checkpoint of the files that ranks under FSDP v1 of PyTorch/XLA have written, one each, by scripts without hwal.

    python -m hwal_tpu.consolidate FOLDER [OUT]

FOLDER holds `rank-0-of-8.pth` … (anything may stand before `rank`), each with a `model` and its `shard_metadata`, as
torch_xla's documentation has scripts save them. OUT, FOLDER unless given, gets `model.safetensors` with whole tensors under
the model's own names, which loads without torch_xla. Tensor by tensor, so that memory holds one of them. What optimizers had
is left behind.
"""

from __future__ import annotations

import math
import pickle
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from hwal.display import tell
from hwal.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, CheckpointError, HwalError, UsageError
from hwal.launch.script import told
from hwal_torch.tensorfile import Layout, Writer

COMMAND = "python -m hwal_tpu.consolidate"
FILE = re.compile(r"(?P<name>.*)rank-(?P<rank>[0-9]{1,9})-of-(?P<size>[0-9]{1,9})\.pth")
SHARD = "_fsdp_shard"  # how v1 begins the name of a rank's part
FLAT = "_fsdp_wrapped_module.flat_param_"  # in the name of a tensor that holds many parameters, one after the other
WRAPPERS = ("_fsdp_wrapped_module.", "_fpw_module.")  # what v1 puts into names


@dataclass(frozen=True)
class Part:
    """A whole tensor of the model: where it is in what ranks have written.

    Attributes:
        key: in each rank's `model`. start: where it begins in the tensor that the ranks' parts make, flattened; None where
            these parts are rows. dtype, shape: of the whole. cut: whether each rank has a part; else rank 0 has it.
    """

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    cut: bool = False
    start: int | None = None


def consolidate(folder: Path, out: Path) -> tuple[int, list[str]]:
    """Writes model.safetensors into `out`, a large model in several files with an index; returns how many tensors there are
    and the files' names. Raises CheckpointError, OSError."""
    paths = find(folder)
    ranks = [_load(path, rank, len(paths)) for rank, path in enumerate(paths)]
    models: list[Mapping[str, torch.Tensor]] = [saved["model"] for saved in ranks]
    for path, model in zip(paths, models, strict=True):
        if differ := model.keys() ^ models[0].keys():
            raise CheckpointError(
                f"it holds other tensors than rank 0's: {min(differ)} is in one of them only",
                where=str(path),
                hint="all ranks' files must be of one save of one model",
            )
    try:
        parts = dict(parts_of(models[0], ranks[0]["shard_metadata"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"its shard_metadata does not describe its model: {type(error).__name__}: {error}",
            where=str(paths[0]),
            hint="save {'model': model.state_dict(), 'shard_metadata': model.get_shard_metadata()} of one model at one moment",
        ) from None
    layout = Layout("model", parts)
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".consolidate-", dir=out) as aside:  # so that a file which is there is whole
        layout.create(Path(aside))
        with Writer(Path(aside), layout.slots) as writer:
            for name, part in parts.items():
                writer.write(name, assemble(models, part))
        files = sorted(file.name for file in Path(aside).iterdir())
        if others := sorted({path.name for path in out.glob("model*.safetensors*")} - set(files)):
            raise CheckpointError(
                f"there are files of another model already: {', '.join(others)}",
                where=str(out),
                hint="another OUT, or remove them: who loads the folder would find both",
            )
        for name in files:
            (Path(aside) / name).replace(out / name)
    return len(parts), files


def find(folder: Path) -> list[Path]:
    """The ranks' files in their order. Raises CheckpointError where they are not there, not all there, or of several saves."""
    found: dict[tuple[str, int], dict[int, Path]] = defaultdict(dict)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if match := FILE.fullmatch(path.name):
            found[match["name"], int(match["size"])][int(match["rank"])] = path
    if not found:
        raise CheckpointError(
            "there are no files of ranks under FSDP v1" if folder.is_dir() else "there is no such folder",
            where=str(folder),
            hint="the folder that holds rank-0-of-8.pth and the others",
        )
    if len(found) > 1:
        raise CheckpointError(
            f"files of {len(found)} saves: {', '.join(f'{name}rank-…-of-{size}.pth' for name, size in sorted(found))}",
            where=str(folder),
            hint="move those of one save into a folder of their own",
        )
    ((_, size), files) = next(iter(found.items()))
    if missing := [rank for rank in range(size) if rank not in files]:
        raise CheckpointError(
            f"{len(missing)} of {size} ranks' files are missing: rank {', '.join(map(str, missing[:8]))}",
            where=str(folder),
            hint="each rank writes its own, on its own machine: copy all into one folder",
        )
    return [files[rank] for rank in range(size)]


def _load(path: Path, rank: int, size: int) -> Mapping[str, Any]:
    try:
        saved = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"it cannot be read: {str(error).splitlines()[0]}", where=str(path)) from None
    if not isinstance(saved, dict) or not {"model", "shard_metadata"} <= saved.keys():
        raise CheckpointError(
            "it holds no model with its shard_metadata",
            where=str(path),
            why="how the parts make a whole stands in the metadata alone",
            hint="save {'model': model.state_dict(), 'shard_metadata': model.get_shard_metadata()}",
        )
    metadata = saved["shard_metadata"] if isinstance(saved["shard_metadata"], dict) else {}
    says = metadata.get("rank"), metadata.get("world_size")
    if says != (rank, size):
        raise CheckpointError(
            "it was saved by rank {} of {}, and its name says another".format(*says),
            where=str(path),
            hint="a file's name must say its rank, from 0, and how many there are",
        )
    return saved


def parts_of(model: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> Iterator[tuple[str, Part]]:
    """Name -> part of each whole tensor, from what one rank has written."""
    for key, tensor in model.items():
        path, shard, rest = _split(key)
        if not shard:
            dtype = metadata["buffer_info"].get(key, {}).get("_orig_dtype", tensor.dtype)
            yield _plain(key), Part(key, dtype, tuple(tensor.shape))
            continue
        info = metadata["shard_info"][path][rest]
        full = f"{path}.{info['_orig_name']}" if path else info["_orig_name"]
        if FLAT not in full:
            rows = tensor.dim() > 1
            yield _plain(full), Part(key, tensor.dtype, tuple(info["_orig_size"]), True, None if rows else 0)
            continue
        start, stem = 0, full.rpartition(".")[0]
        for name, shape, count in zip(*metadata["flatten_info"][full], strict=True):
            yield _plain(f"{stem}.{name}"), Part(key, tensor.dtype, tuple(shape), True, start)
            start += count


def _split(key: str) -> tuple[str, str, str]:
    """The path to a unit of FSDP, SHARD where the rest names a part of it, and that rest."""
    names = key.split(".")
    for i, name in enumerate(names):
        if name.startswith(SHARD):
            return ".".join(names[:i]), SHARD, ".".join(names[i:])
    return key, "", ""


def _plain(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def assemble(models: Sequence[Mapping[str, torch.Tensor]], part: Part) -> torch.Tensor:
    """A whole tensor, of all ranks' parts; what was filled up at their end is left out."""
    if not part.cut:
        return models[0][part.key].to(part.dtype)
    together = torch.cat([model[part.key] for model in models])
    if part.start is None:
        return together[: part.shape[0]]
    return together[part.start : part.start + math.prod(part.shape)].view(part.shape)


def main(argv: Sequence[str]) -> int:
    if {"-h", "--help"} & set(argv):
        print(f"usage: {COMMAND} FOLDER [OUT]\n\n{(__doc__ or '').strip()}")
        return EXIT_OK
    if not 1 <= len(argv) <= 2 or any(word.startswith("-") for word in argv):
        given = " ".join(argv) or "nothing"
        what = f"FOLDER, and OUT if the model is to be elsewhere, are all it takes, not {given}"
        tell("\n".join(told(UsageError(what, where=COMMAND, hint=f"{COMMAND} FOLDER [OUT]; --help says more"))))
        return EXIT_USAGE
    folder, out = Path(argv[0]), Path(argv[-1])
    try:
        count, files = consolidate(folder, out)
    except HwalError as error:
        tell("\n".join(told(error)))
        return EXIT_FAILED
    except OSError as error:
        tell("\n".join(told(CheckpointError(f"{error.strerror or error}", where=str(error.filename or out)))))
        return EXIT_FAILED
    tell(f"hwal: {count} tensors in {out}: {', '.join(files)}")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
