"""The memory estimate behind `auto`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hwal.values import Decision
from hwal_torch.blocks import find_blocks
from hwal_torch.estimate import Need, decide, estimate, fits
from tests.torch.models import Vision, transformer

GIB = 2**30
BYTES = st.integers(0, 2**42)
NEEDS = st.builds(Need, BYTES, BYTES, BYTES, st.just("AdamW"), BYTES)


def linear(optimizer: type[torch.optim.Optimizer], **options: Any) -> Need:
    """Of a layer with 1000 float32 parameters."""
    model = nn.Linear(100, 10, bias=False)
    return estimate([model], [optimizer(model.parameters(), **options)])


class Own(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})


class Mine(torch.optim.AdamW):
    pass


class AdamW8bit(Own):  # as bitsandbytes and torchao call theirs
    pass


@pytest.mark.parametrize(
    ("optimizer", "options", "times", "keeper"),
    [
        (torch.optim.AdamW, {}, 2, "AdamW"),
        (torch.optim.Adam, {"amsgrad": True}, 3, "Adam"),
        (torch.optim.SGD, {"lr": 0.1}, 0, "SGD"),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, 1, "SGD"),
        (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}, 3, "RMSprop"),
        (torch.optim.Adafactor, {}, 0, "Adafactor"),
        (torch.optim.Adagrad, {}, 1, "Adagrad"),
        (Mine, {}, 2, "Mine"),
        (AdamW8bit, {}, 0.5, "AdamW8bit"),
        (Own, {}, 2, "Own (taken to keep as much as Adam)"),
    ],
)
def test_what_optimizers_keep(optimizer: Any, options: dict[str, Any], times: float, keeper: str) -> None:
    assert linear(optimizer, **options) == Need(4000, 4000, round(4000 * times), keeper, 8000)


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "RMSprop", "Adagrad", "Adadelta", "NAdam", "Adamax", "Rprop", "ASGD"])
def test_the_table_says_what_they_really_keep(name: str) -> None:
    model = nn.Linear(100, 100, bias=False)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    model(torch.randn(2, 100)).sum().backward()
    optimizer.step()
    real = sum(v.nbytes for v in optimizer.state[model.weight].values() if isinstance(v, torch.Tensor) and v.numel() > 1)
    assert estimate([model], [optimizer]).optimizer == real


def test_frozen_parameters_have_no_gradient_and_no_state() -> None:
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)).to(torch.bfloat16)
    model[0].requires_grad_(False)
    need = estimate([model], [torch.optim.AdamW(model.parameters())])
    assert (need.parameters, need.gradients, need.optimizer) == (400, 200, 400)


def test_tied_weights_and_shared_models_count_once() -> None:
    model = transformer("gpt2")
    distinct = sum(p.nbytes for p in model.parameters())
    assert estimate([model, model], []).parameters == distinct
    assert estimate([model], []).keeper == "no optimizer"


def test_the_largest_unit_is_a_block_or_what_is_in_none() -> None:
    model = Vision(3)
    block = 2 * sum(p.nbytes for p in model.blocks[0].parameters())
    rest = 2 * sum(p.nbytes for part in (model.patch, model.head) for p in part.parameters())
    assert estimate([model], [], [find_blocks(model)]).largest == block > rest
    model.patch = nn.Linear(12, 10_000)
    assert estimate([model], [], [find_blocks(model)]).largest > block


def test_a_model_on_the_meta_device_is_counted_too() -> None:
    with torch.device("meta"):
        model = nn.Linear(1000, 1000, bias=False)
    assert estimate([model], []).total == 8_000_000


NEED = Need(int(1.2 * GIB), int(1.2 * GIB), int(2.4 * GIB), "AdamW", GIB // 2)
SUM = "parameters 1.2 GiB + gradients 1.2 GiB + AdamW 2.4 GiB = 4.8 GiB"


def test_the_arithmetic_is_told() -> None:
    assert decide(NEED, 16 * GIB, 2, True) == (
        Decision("ddp", f"{SUM} of 16.0 GiB, a quarter of it kept for activations: fits"),
        None,
    )
    assert decide(NEED, 4 * GIB, 2, True) == (
        Decision(
            "fsdp:full",
            f"{SUM} of 4.0 GiB, a quarter of it kept for activations: does not fit; "
            "1/2 of it and the largest block make 2.9 GiB",
        ),
        None,
    )
    decision, warning = decide(NEED, 2 * GIB, 2, True)
    assert decision.value == "fsdp:full"
    assert warning == (
        "memory: fsdp:full at 2 ranks needs 2.9 GiB of 2.0 GiB before any activation: it may run out. More devices, +offload "
        "(fsdp strategies), --grad-checkpoint and a smaller --micro-batch help"
    )
    assert decide(NEED, None, 2, True) == (Decision("ddp", f"{SUM}; how much memory the device has is unknown"), None)
    decision, warning = decide(NEED, 2 * GIB, 2, False)
    assert decision.value == "ddp" and decision.why.endswith("does not fit, and this backend cannot shard")
    assert warning is not None and warning.startswith("memory: ddp needs 4.8 GiB of 2.0 GiB")


@given(need=NEEDS, room=st.none() | st.integers(1, 2**44), world=st.integers(2, 4096), sharding=st.booleans())
def test_ddp_is_taken_exactly_when_it_fits_or_nothing_else_is_there(
    need: Need, room: int | None, world: int, sharding: bool
) -> None:
    decision, warning = decide(need, room, world, sharding)
    assert (decision.value == "ddp") == (room is None or not sharding or fits(need.total, room))
    needed = need.total if decision.value == "ddp" else need.sharded(world)
    assert (warning is None) == (room is None or fits(needed, room))


@given(need=NEEDS, world=st.integers(1, 4096), more=st.integers(1, 4096))
def test_more_ranks_never_need_more(need: Need, world: int, more: int) -> None:
    assert need.sharded(1) == need.total
    if world > 1:
        assert need.sharded(world + more) <= need.sharded(world)
        assert world * (need.sharded(world) - need.largest) >= need.total


@given(need=NEEDS, room=st.integers(1, 2**44), more=st.integers(0, 2**44))
def test_what_fits_a_device_fits_a_larger_one(need: Need, room: int, more: int) -> None:
    assert not fits(need.total, room) or fits(need.total, room + more)
