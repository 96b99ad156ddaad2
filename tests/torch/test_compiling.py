"""--compile: the same curve, blocks that share their code, and a word before the first step where it cannot work."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import nn

from hwal.errors import VersionError
from hwal_torch.blocks import find_blocks
from hwal_torch.compiling import check_compiler, compile_blocks, no_room
from hwal_torch.recompute import recompute_blocks
from tests.torch.models import Vision, perceptron, transformer
from tests.torch.test_recompute import Loss, curve, kept, language, patches

CPU = torch.device("cpu")
TOLERANCE = 1e-5  # relative, over a few steps of fp32: fused sums are taken in another order


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions that torch.compile was given, which it hands back as they are."""
    given: list[Any] = []

    def stand_in(function: Any) -> Any:
        given.append(function)
        return function

    monkeypatch.setattr(torch, "compile", stand_in)
    return given


def test_each_block_is_compiled(compiled: list[Any]) -> None:
    model = Vision(3)
    said = compile_blocks(model, find_blocks(model), CPU)
    assert [function.__self__ for function in compiled] == list(model.blocks)
    assert said == (
        "compiled in the first steps, which take longer: 3 × Block, the class that repeats in blocks; "
        "dropout draws other random numbers than without --compile"
    )
    patches(model).backward()


def test_all_of_a_model_without_blocks_is_compiled(compiled: list[Any]) -> None:
    model = perceptron(2, 3, 4)
    said = compile_blocks(model, find_blocks(model), CPU)
    assert [function.__self__ for function in compiled] == [model]
    assert said.startswith("compiled in the first steps, which take longer: Sequential as a whole (no blocks: no class repeats")


def test_names_copies_and_pickles_stay(compiled: list[Any]) -> None:
    model = transformer("gpt2", use_cache=False)
    names = list(model.state_dict())
    compile_blocks(model, find_blocks(model), CPU)
    assert list(model.state_dict()) == names
    expected = curve(deepcopy(model), language)[0]
    assert curve(pickle.loads(pickle.dumps(model)), language)[0] == expected
    assert curve(model, language)[0] == expected


def test_recomputing_stands_in_front_of_compiled_code(compiled: list[Any]) -> None:
    model = Vision(2)
    blocks = find_blocks(model)
    calls: list[int] = []
    model.blocks[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    compile_blocks(model, blocks, CPU)
    recompute_blocks(model, blocks)
    patches(model).backward()
    assert len(calls) == 2


def test_no_compiler_is_told_at_once() -> None:
    from torch._inductor import config

    with config.patch({"cpp.cxx": ("no-such-compiler",)}), pytest.raises(VersionError) as caught:
        compile_blocks(Vision(), find_blocks(Vision()), CPU)
    assert str(caught.value) == dedent(
        """\
        torch.compile needs a C++ compiler on a CPU, and there is none
          where: --compile
          why:   looked for $CXX, else g++ (Linux), clang++ (macOS), cl (Windows)
          try:   apt install g++ (macOS: xcode-select --install), or no --compile"""
    )


def test_no_headers_are_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", lambda: "g++")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(VersionError, match=r"Python's headers .* not installed"):
        check_compiler(CPU)
    (tmp_path / "Python.h").touch()
    check_compiler(CPU)


def test_a_python_that_dynamo_does_not_know_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._dynamo.is_dynamo_supported", lambda: False)
    with pytest.raises(VersionError, match="cannot compile under this Python"):
        check_compiler(CPU)


def without_dropout(model: nn.Module) -> nn.Module:
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "loss"),
    [
        (lambda: transformer("gpt2", 9, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), language),  # torch stops at 8
        (lambda: without_dropout(Vision(3)), patches),
    ],
    ids=["gpt2", "hand-written"],
)
def test_the_curve_stays_and_one_block_is_compiled_for_all(build: Callable[[], nn.Module], loss: Loss) -> None:
    from torch._dynamo.utils import counters

    model = build()
    plain = curve(deepcopy(model), loss)[0]
    torch._dynamo.reset()
    counters.clear()
    fused, light = deepcopy(model), deepcopy(model)
    for twin in (fused, light):
        compile_blocks(twin, find_blocks(twin), CPU)
    recompute_blocks(light, find_blocks(light))
    losses = curve(fused, loss)[0]
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    assert losses == pytest.approx(plain, rel=TOLERANCE)
    assert curve(light, loss)[0] == pytest.approx(plain, rel=TOLERANCE)
    assert kept(light, loss) < 0.6 * kept(fused, loss)


def test_a_compiler_that_has_no_room_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.exc import InductorError

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/full")
    full = InductorError(OSError(28, "No space left on device"), None)  # type: ignore[arg-type]
    assert str(no_room(full)).splitlines() == [
        "torch.compile cannot write what it compiles: No space left on device",
        "  where: /full",
        "  try:   free space; another folder by TORCHINDUCTOR_CACHE_DIR or TMPDIR; or no --compile",
    ]
    assert no_room(OSError(28, "No space left on device")) is None and no_room(None) is None
    assert no_room(InductorError(OSError(2, "No such file or directory"), None)) is None  # type: ignore[arg-type]
