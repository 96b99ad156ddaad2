"""Tensors on disk: what the safetensors library reads is what was written, by whomever and in whatever order."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from hwal.errors import CheckpointError
from hwal_torch.tensorfile import CODES, Layout, Reader, Writer

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.int64,
    torch.bool,
    torch.uint8,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
]
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
KINDS = st.dictionaries(st.text("abc./$é", min_size=1, max_size=4), st.tuples(SHAPES, st.sampled_from(DTYPES)), max_size=6)


def tensors_of(kinds: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randint(0, 2, shape, generator=generator).to(torch.float32).to(dtype)
        for name, (shape, dtype) in kinds.items()
    }


def read(folder: Path, stem: str) -> dict[str, torch.Tensor]:
    """By the library, from the files that the index names."""
    index = folder / f"{stem}.safetensors.index.json"
    found = {}
    files = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {f"{stem}.safetensors"}
    for name in files:
        with safe_open(folder / name, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
            found.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118 - it is no mapping
    return found


def same(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (ours, theirs)]
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(*bits)


@given(kinds=KINDS, limit=st.integers(1, 200), data=st.data())
def test_written_in_pieces_and_read_by_the_library(
    tmp_path_factory: pytest.TempPathFactory,
    kinds: dict[str, tuple[tuple[int, ...], torch.dtype]],
    limit: int,
    data: st.DataObject,
) -> None:
    folder, tensors = tmp_path_factory.mktemp("files"), tensors_of(kinds)
    layout = Layout("model", tensors, limit)
    layout.create(folder)
    pieces = []
    for name, tensor in tensors.items():
        cuts = sorted(data.draw(st.lists(st.integers(0, len(tensor)), max_size=2))) if tensor.dim() else []
        bounds = [0, *cuts, len(tensor)] if tensor.dim() else []
        pieces += [(name, tensor[low:high], low) for low, high in pairwise(bounds)] or [(name, tensor, 0)]
    with Writer(folder, layout.slots) as one, Writer(folder, layout.slots) as other:
        for piece in data.draw(st.permutations(pieces)):
            data.draw(st.sampled_from([one, other])).write(*piece)
    found = read(folder, "model")
    assert found.keys() == tensors.keys()
    assert all(same(found[name], tensor) for name, tensor in tensors.items())
    with Reader(folder, "model") as reader:
        assert reader.slots == layout.slots
        for name, tensor in tensors.items():
            assert same(reader.whole(name), tensor)
            if tensor.dim():
                low = data.draw(st.integers(0, len(tensor)))
                part = torch.empty_like(tensor[low:])
                reader.read(name, part, low)
                assert same(part, tensor[low:])


def test_files_are_split_as_transformers_would(tmp_path: Path) -> None:
    """Its loader takes these names; a tensor above the limit has a file of its own."""
    tensors = {name: torch.full((rows, 2), float(rows)) for name, rows in (("a", 3), ("b", 1), ("c", 9), ("d", 2))}
    layout = Layout("model", tensors, limit=40)
    layout.create(tmp_path)
    assert [layout.slots[name].file[:24] for name in "abcd"] == [
        "model-00001-of-00003.saf",
        "model-00001-of-00003.saf",
        "model-00002-of-00003.saf",
        "model-00003-of-00003.saf",
    ]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 15 * 8} and list(index["weight_map"]) == list("abcd")


def test_what_the_library_wrote_is_read(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3), "empty": torch.empty(0, 2)}
    save_file(tensors, tmp_path / "state.safetensors")
    with Reader(tmp_path, "state") as reader:
        assert all(same(reader.whole(name), tensor) for name, tensor in tensors.items())
        other = torch.empty(3, 2, dtype=torch.float64).t()  # another dtype, and not contiguous
        reader.read("a", other)
        assert torch.equal(other, tensors["a"].double())


def test_a_dtype_that_safetensors_lacks_is_told(tmp_path: Path) -> None:
    assert torch.complex128 not in CODES
    with pytest.raises(CheckpointError, match=r"safetensors has no torch\.complex128"):
        Layout("model", {"a": torch.zeros(2, dtype=torch.complex128)})


def test_a_file_that_ends_too_early_is_told(tmp_path: Path) -> None:
    layout = Layout("model", {"a": torch.zeros(100)})
    layout.create(tmp_path)
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4)
    with Reader(tmp_path, "model") as reader, pytest.raises(CheckpointError, match="ends within a"):
        reader.whole("a")
