"""Precision, strategy and the batch's rules: values, and each error as printed."""

from __future__ import annotations

import pytest

from hwal.env import Settings
from hwal.errors import HwalError
from hwal.launch.build import over_nodes
from hwal.plan import make_plan
from hwal.plan.batch import check_batch
from hwal.topology import Device
from hwal.values import Caps, Choice, Decision, Plan, Request, Target

CAPS = Caps(
    frameworks=("torch",),
    collectives="gloo",
    shares_devices=True,
    sharding=True,
    emulated={"bf16": "about twice the time of fp32", "fp16": "about ten times the time of fp32"},
)
AMX = {"bf16": "AMX-BF16", "fp32": "AVX512"}
OLD = {"fp32": "AVX2"}


def toy(index: int, native: dict[str, str], name: str = "Toy 1") -> Device:
    return Device("toy", index, name=name, cores=(0, 1, 2, 3), threads=4, native=native, sources={"native": "procfs"})


def plan(*devices: Device, n: int | None = None, caps: Caps = CAPS, **settings: object) -> Plan:
    choice = Choice(Target("toy"), "toy", devices or (toy(0, AMX),), "a test")
    request = Request(target=Target("toy"), processes=n, settings=Settings(**settings))  # type: ignore[arg-type]
    return make_plan(choice, caps, request, Decision("torch", "a test"))


@pytest.mark.parametrize(
    ("devices", "asked", "value", "why", "notes"),
    [
        ([AMX], "auto", "bf16", "native: AMX-BF16, from procfs", ()),
        ([{"fp16": "sm_75", "fp32": "sm_75"}], "auto", "fp16", "native: sm_75, from procfs", ()),
        ([{"fp32": "AVX512", "fp16": "AVX512-FP16"}], "auto", "fp32", "nothing narrower is native to 1 × Toy 1", ()),
        ([{"fp32": "AVX512", "bf16": "AVX512-BF16"}], "auto", "bf16", "native: AVX512-BF16, from procfs", ()),
        ([OLD], "auto", "fp32", "nothing narrower is native to 1 × Toy 1", ()),
        ([{}], "auto", "fp32", "nothing narrower is native to 1 × Toy 1", ()),
        ([AMX, OLD], "auto", "fp32", "device 1 (Toy 1) has no native bf16", ()),
        ([{"bf16": "a", "fp16": "a"}, {"fp16": "b"}], "auto", "fp16", "native: a, b, from procfs", ()),
        ([OLD, AMX], "auto", "fp32", "device 0 (Toy 1) has no native bf16", ()),
        ([OLD, OLD], "auto", "fp32", "nothing narrower is native to 2 × Toy 1", ()),
        ([AMX], "bf16", "bf16", "asked for; native: AMX-BF16, from procfs", ()),
        ([AMX], "fp32", "fp32", "asked for; native: AVX512, from procfs", ()),
        ([{}], "fp32", "fp32", "asked for", ()),
        (
            [OLD],
            "bf16",
            "bf16",
            "asked for; emulated",
            ("bf16 is emulated on 1 × Toy 1: about twice the time of fp32; --precision auto takes fp32",),
        ),
    ],
)
def test_precision(devices: list[dict[str, str]], asked: str, value: str, why: str, notes: tuple[str, ...]) -> None:
    made = plan(*(toy(i, native) for i, native in enumerate(devices)), n=1 if len(devices) == 1 else None, precision=asked)
    assert made.precision == Decision(value, why)
    assert made.notes == notes


@pytest.mark.parametrize(
    ("n", "asked", "value", "why"),
    [
        (1, "auto", "single", "one process"),
        (2, "auto", "auto", "decided when the model is known"),
        (2, "ddp", "ddp", "asked for"),
        (1, "ddp", "single", "ddp asked for, and one process has nothing to bring together"),
        (1, "single", "single", "asked for"),
        (2, "fsdp:full", "fsdp:full", "asked for"),
        (2, "fsdp:grad-op+offload", "fsdp:grad-op+offload", "asked for"),
        (2, "fsdp:hybrid", "fsdp:hybrid", "asked for; within one machine the same as fsdp:full"),
        (2, "fsdp:hybrid-grad-op", "fsdp:hybrid-grad-op", "asked for; within one machine the same as fsdp:grad-op"),
        (2, "fsdp:hybrid+offload", "fsdp:hybrid+offload", "asked for; within one machine the same as fsdp:full+offload"),
        (1, "fsdp:hybrid", "single", "fsdp:hybrid asked for, and one process has nothing to shard"),
    ],
)
def test_strategy(n: int, asked: str, value: str, why: str) -> None:
    assert plan(n=n, strategy=asked).strategy == Decision(value, why)


@pytest.mark.parametrize(
    ("asked", "mesh"),
    [
        ("auto", {"dp": 8}),
        ("ddp", {"dp": 8}),
        ("fsdp:full", {"fsdp": 8}),
        ("fsdp:grad-op+offload", {"fsdp": 8}),
        ("fsdp:hybrid", {"dp": 2, "fsdp": 4}),
        ("fsdp:hybrid-grad-op", {"dp": 2, "fsdp": 4}),
    ],
)
def test_the_mesh_says_what_is_copied_and_what_is_cut(asked: str, mesh: dict[str, int]) -> None:
    choice = Choice(Target("toy"), "toy", (toy(0, AMX),), "a test")
    request = Request(target=Target("toy"), processes=4, settings=Settings(strategy=asked))
    assert dict(make_plan(choice, CAPS, request, Decision("torch", "a test"), nodes=2).mesh) == mesh
    alone = make_plan(choice, CAPS, request, Decision("torch", "a test"))
    assert over_nodes(alone, 2).mesh == mesh, "as when only the engine knows how many machines there are"


NO_SHARDING = Caps(frameworks=("torch",), collectives="gloo", shares_devices=True)

ERRORS = [
    (
        {"precision": "tf32"},
        """
        1 × Toy 1 cannot compute in tf32; it can in bf16, fp32, fp16 (emulated)
          where: --precision tf32
          try:   --precision bf16, or --precision auto
        """,
    ),
    (
        {"strategy": "dpp"},
        """
        unknown strategy 'dpp'; there are auto, single, ddp, fsdp:full, fsdp:grad-op, fsdp:hybrid, fsdp:hybrid-grad-op
          where: --strategy dpp
          try:   did you mean ddp?
        """,
    ),
    (
        {"strategy": "fsdp:full+offload"},
        """
        +offload keeps shards in the host's memory, and one process has none
          where: --strategy fsdp:full+offload
          try:   -n 2 or more; in one process --grad-checkpoint and a smaller --micro-batch save memory
        """,
    ),
    (
        {"strategy": "fsdp:full+offload", "n": 2, "caps": NO_SHARDING},
        """
        toy cannot shard parameters over ranks
          where: --strategy fsdp:full+offload
          try:   --strategy ddp
        """,
    ),
    (
        {"strategy": "ddp+offload", "n": 2},
        """
        +offload goes with the fsdp strategies only, not with ddp
          where: --strategy ddp+offload
          try:   --strategy ddp
        """,
    ),
    (
        {"strategy": "single", "n": 2},
        """
        single is for one process, the world has 2 (2 ≠ 1)
          where: --strategy single
          try:   -n 1, or --strategy ddp
        """,
    ),
    (
        {"virtual_ranks": 4, "n": 3},
        """
        virtual ranks must be a multiple of the world size: 4 = 1 × 3 + 1
          where: --virtual-ranks 4
          why:   each of the 3 processes does the same number of parts
          try:   --virtual-ranks 6
        """,
    ),
    (
        {"virtual_ranks": 4, "micro_batch": 2, "n": 2},
        """
        --micro-batch and --virtual-ranks exclude each other
          why:   virtual ranks already say how a global batch is cut: one part, one forward
          try:   leave out --micro-batch, and raise --virtual-ranks (now 4) for smaller parts
        """,
    ),
    (
        {"deterministic": True, "virtual_ranks": 2, "strategy": "fsdp:full", "n": 2},
        """
        --deterministic goes with single and ddp, not with fsdp:full
          why:   it adds the gradients of the parts in their order, and a shard's are added while they travel
          try:   --strategy ddp, or leave out --deterministic: losses within 1e-6 instead of equal
        """,
    ),
    (
        {"no_fallback": True},
        """
        --no-fallback comes with a later version of hwal
          where: --no-fallback
          try:   leave it out: no device of this version has operators that fall back to the CPU
        """,
    ),
    (
        {"micro_batch": "auto", "virtual_ranks": 4},
        """
        --micro-batch and --virtual-ranks exclude each other
          why:   virtual ranks already say how a global batch is cut: one part, one forward
          try:   leave out --micro-batch, and raise --virtual-ranks (now 4) for smaller parts
        """,
    ),
    (
        {"caps": Caps(frameworks=("torchy",))},
        """
        this version has no torch runtime for toy; there is torchy
          why:   framework torch (a test)
          try:   --framework torchy
        """,
    ),
]


@pytest.mark.parametrize(("asked", "text"), ERRORS)
def test_errors_as_printed(asked: dict[str, object], text: str) -> None:
    from textwrap import dedent

    with pytest.raises(HwalError) as caught:
        plan(**asked)  # type: ignore[arg-type]
    assert str(caught.value) == dedent(text).strip()
    assert caught.value.exit_code == 2


def test_deterministic_needs_virtual_ranks() -> None:
    with pytest.raises(HwalError) as caught:
        check_batch(Settings(deterministic=True), 2, "ddp")
    assert str(caught.value) == (
        "--deterministic needs --virtual-ranks\n"
        "  why:   losses are bitwise equal at two worlds only when both add the same parts in the same order\n"
        "  try:   --deterministic --virtual-ranks 2, or any multiple of every world size you mean to use"
    )
    check_batch(Settings(deterministic=True, virtual_ranks=4), 2, "auto")


def test_batch_settings_that_fit_are_kept() -> None:
    assert plan(n=2, virtual_ranks=4).micro_batch is None
    assert plan(n=2, micro_batch=3).micro_batch == 3
    assert plan(n=2, micro_batch="auto").micro_batch == "auto"
