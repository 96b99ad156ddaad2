"""Tensors on disk: plain safetensors, split into several files above a size, with the index that transformers reads.

    model.safetensors        or        model-00001-of-00003.safetensors …  and  model.safetensors.index.json

Where a tensor stands is a function of names, dtypes and shapes alone. So every rank can write its own rows right where they
belong: nothing is gathered, written twice or moved afterwards. Reading goes from the file into the tensor, without a copy
between them; the safetensors library maps files, and what is read through a map counts as memory a second time.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import torch

from hwal.errors import CheckpointError

LIMIT = 5 * 10**9  # bytes of a file, above which a set of tensors is split: what hosts of models recommend

NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64", "BOOL": "bool",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, dtype) for name, dtype in NAMES.items() if hasattr(torch, dtype)}
CODES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}


class Kind(Protocol):
    """What a tensor is, apart from its values."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class Slot(NamedTuple):
    """Where a tensor stands: its file, and the byte of it at which it begins."""

    file: str
    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: of what stands at one index of the first dimension."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


class Layout:
    """The files of one set of tensors, before they are written.

    Attributes:
        slots: name of a tensor -> where it goes.
    """

    def __init__(self, stem: str, tensors: Mapping[str, Kind], limit: int = LIMIT) -> None:
        """Raises CheckpointError for a dtype that safetensors does not have."""
        self.slots: dict[str, Slot] = {}
        self._stem = stem
        self._heads: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}
        groups = list(_split(tensors, limit))
        for number, names in enumerate(groups, 1):
            part = f"-{number:05d}-of-{len(groups):05d}" if len(groups) > 1 else ""
            self._lay(f"{stem}{part}.safetensors", {name: tensors[name] for name in names})

    def _lay(self, file: str, tensors: Mapping[str, Kind]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize):  # so that each is aligned to its dtype
            tensor = tensors[name]
            if tensor.dtype not in CODES:
                raise CheckpointError(f"safetensors has no {tensor.dtype}", where=name)
            begin, end = end, end + _bytes(tensor)
            header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._heads[file] = len(text).to_bytes(8, "little") + text
        self._sizes[file] = 8 + len(text) + end
        for name, tensor in tensors.items():
            start = 8 + len(text) + header[name]["data_offsets"][0]
            self.slots[name] = Slot(file, start, tensor.dtype, tuple(tensor.shape))

    def create(self, folder: Path) -> None:
        """Makes the files in full length, with their headers, and the index. One process does this, before any writes rows."""
        for file, head in self._heads.items():
            with (folder / file).open("wb") as output:
                output.write(head)
                output.truncate(self._sizes[file])
        if len(self._heads) > 1:
            index = {
                "metadata": {"total_size": sum(math.prod(slot.shape) * slot.dtype.itemsize for slot in self.slots.values())},
                "weight_map": {name: slot.file for name, slot in self.slots.items()},
            }
            (folder / f"{self._stem}.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _split(tensors: Mapping[str, Kind], limit: int) -> Iterator[list[str]]:
    """Names file by file, in their order: another file begins where the next tensor would make one larger than `limit`."""
    names: list[str] = []
    total = 0
    for name, tensor in tensors.items():
        if names and total + _bytes(tensor) > limit:
            yield names
            names, total = [], 0
        names.append(name)
        total += _bytes(tensor)
    yield names


def _bytes(tensor: Kind) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize


class Writer:
    """Writes rows into the files of a layout. Several processes may, each its own rows."""

    def __init__(self, folder: Path, slots: Mapping[str, Slot]) -> None:
        self._folder = folder
        self._slots = slots
        self._files: dict[str, FileIO] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for file in self._files.values():
                stack.callback(file.close)
            for file in self._files.values():
                os.fsync(file.fileno())

    def write(self, name: str, rows: torch.Tensor, first: int = 0) -> None:
        """Writes consecutive rows of a tensor, from number `first` on; or a whole one. Raises OSError."""
        if rows.numel() == 0:
            return
        slot = self._slots[name]
        if slot.file not in self._files:
            # For writing alone: a network file system that may also read fetches whole pages, and writes back what other
            # machines have changed in them meanwhile.
            self._files[slot.file] = FileIO(os.open(self._folder / slot.file, os.O_WRONLY), "w")
        file = self._files[slot.file]
        file.seek(slot.start + first * slot.row_bytes)
        data = _view(rows.detach().cpu().contiguous())
        while len(data):
            data = data[file.write(data) :]


class Reader:
    """The tensors of one set, as they were saved.

    Attributes:
        slots: name -> where it stands.
    """

    def __init__(self, folder: Path, stem: str) -> None:
        """Raises FileNotFoundError where there is no such set."""
        index = folder / f"{stem}.safetensors.index.json"
        files = [f"{stem}.safetensors"]
        if index.exists():
            files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        self.slots: dict[str, Slot] = {}
        self._stack = ExitStack()
        with ExitStack() as opened:
            self._files = {file: opened.enter_context(FileIO(folder / file)) for file in files}
            for name, file in self._files.items():
                self._read_header(name, file)
            self._stack = opened.pop_all()

    def _read_header(self, name: str, file: FileIO) -> None:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for key, entry in header.items():
            start = 8 + length + entry["data_offsets"][0]
            self.slots[key] = Slot(name, start, DTYPES[entry["dtype"]], tuple(entry["shape"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, name: str, into: torch.Tensor, first: int = 0) -> None:
        """Fills a tensor, of any dtype and on any device, with the rows that begin at number `first`."""
        if into.numel() == 0:
            return
        slot = self.slots[name]
        direct = into.device.type == "cpu" and into.dtype == slot.dtype and into.is_contiguous()
        target = into if direct else torch.empty(into.shape, dtype=slot.dtype)
        file = self._files[slot.file]
        file.seek(slot.start + first * slot.row_bytes)
        data = _view(target.detach())
        while len(data):
            count = file.readinto(data)
            if not count:
                raise CheckpointError(f"{slot.file} ends within {name}", where=str(file.name))
            data = data[count:]
        if not direct:
            with torch.no_grad():
                into.copy_(target)

    def whole(self, name: str, device: torch.device | str = "cpu") -> torch.Tensor:
        """A tensor as it was saved."""
        slot = self.slots[name]
        tensor = torch.empty(slot.shape, dtype=slot.dtype, device=device)
        self.read(name, tensor)
        return tensor


def _view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the host's."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
