"""Masks that nobody has thought of: what CUDA and ROCm enumerate under them, by properties and a second reading."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from hwal.topology import Device
from hwal_cuda.launch import visible_variables as cuda_variables
from hwal_cuda.report import Gpu
from hwal_cuda.visible import visible as cuda_sees
from hwal_rocm.launch import visible_variables as rocm_variables
from hwal_rocm.visible import CUDA, HIP, ORDINAL, ROCR
from hwal_rocm.visible import visible as rocm_sees
from tests.backends import gpus

GPUS = [gpus.gpu("h100", i) for i in range(12)]
AMD = [Device("rocm", i, id=f"GPU-{0xA0 + i:x}", outer=i) for i in range(6)]

ENTRIES = st.one_of(
    st.integers(-3, 14).map(str),
    st.integers(0, 13).flatmap(
        lambda i: st.sampled_from([f"{i}gpu2", f"+{i}", f"  {i}", f"0{i}", f"{i} ", f"0x{i}", f"{i}.5"])
    ),
    st.integers(0, 12).map(gpus.uuid),
    st.integers(0, 12).flatmap(lambda i: st.integers(4, 20).map(lambda length: gpus.uuid(i)[:length])),
    st.sampled_from(["", " ", "NoDevFiles", "all", "none", "void", "gpu0", "-", "+", "MIG-", "MIG-GPU-1/0/0", "é", "٣"]),
)
MASKS = st.lists(ENTRIES, min_size=1, max_size=6)


def strtoul(text: str) -> int | None:
    """C's, in base 10: blanks, a sign, digits, and whatever follows them."""
    rest = text.lstrip(" \t\n\v\f\r")
    negative = rest[:1] == "-"
    rest = rest[1:] if rest[:1] in ("+", "-") and rest else rest
    digits = ""
    for character in rest:
        if character not in "0123456789":
            break
        digits += character
    return None if not digits else 2**64 - int(digits) if negative and int(digits) else int(digits)


def second_reading(mask: list[str]) -> list[int]:
    """The rules of "CUDA Environment Variables", once more and in another way."""
    found: list[int] = []
    for entry in mask:
        if entry.strip().startswith("GPU-"):
            those = [gpu.index for gpu in GPUS if (gpu.uuid or "").startswith(entry.strip())]
        else:
            number = strtoul(entry)
            those = [number] if number is not None and number < len(GPUS) else []
        if len(those) != 1:
            break
        if those[0] in found:
            return []
        found += those
    return found


def indices(mask: list[str] | str) -> list[int]:
    return [gpu.index for gpu in cuda_sees(GPUS, mask if isinstance(mask, str) else ",".join(mask)).gpus]


@given(MASKS)
@example(["٣"])  # a digit, but none of C's
def test_cuda_by_a_second_reading(mask: list[str]) -> None:
    assert indices(mask) == second_reading(mask)


@given(MASKS, MASKS)
def test_what_follows_an_entry_that_names_nothing_is_ignored(before: list[str], after: list[str]) -> None:
    assert indices([*before, "99", *after]) == indices([*before, "99"]) == indices(before)


@given(st.lists(st.integers(0, 11), min_size=1, max_size=12))
def test_a_duplicate_leaves_none_and_all_else_is_in_order(places: list[int]) -> None:
    assert indices([str(place) for place in places]) == (places if len(set(places)) == len(places) else [])


@given(MASKS)
def test_whatever_is_hidden_is_told(mask: list[str]) -> None:
    seen = cuda_sees(GPUS, ",".join(mask))
    assert seen.notes or len(seen.gpus) == len(mask)


@given(st.permutations(range(12)), st.integers(1, 12), st.sampled_from([None, "PCI_BUS_ID", "FASTEST_FIRST"]), MASKS)
def test_what_a_rank_is_given_shows_just_that(order: list[int], count: int, device_order: str | None, mask: list[str]) -> None:
    """Also where a mask is there already, and whatever order CUDA counts in."""
    mixed: list[Gpu] = [gpus.gpu(("t4", "a100", "h100")[i % 3], i) for i in range(12)]
    for inherited in (None, ",".join(mask)):
        seen = cuda_sees(mixed, inherited, device_order).gpus
        chosen = [seen[place] for place in order if place < len(seen)][:count]
        devices = [Device("cuda", place, id=gpu.uuid, outer=gpu.index) for place, gpu in enumerate(chosen)]
        given_mask = cuda_variables(devices)["CUDA_VISIBLE_DEVICES"]
        assert [gpu.index for gpu in cuda_sees(mixed, given_mask, device_order).gpus] == [gpu.index for gpu in chosen]


AMD_ENTRIES = st.one_of(
    st.integers(-1, 7).map(str),
    st.integers(0, 6).map(lambda i: f"0{i}"),
    st.integers(0, 6).map(lambda i: f"GPU-{0xA0 + i:X}"),
    st.sampled_from(["", "x"]),
)
AMD_MASKS = st.lists(AMD_ENTRIES, min_size=1, max_size=5).map(",".join)


@given(st.dictionaries(st.sampled_from([ROCR, ORDINAL, HIP, CUDA]), AMD_MASKS))
def test_each_mask_of_rocm_narrows_what_the_one_before_has_left(env: dict[str, str]) -> None:
    left: list[Device] = AMD
    for name in (ROCR, ORDINAL, HIP if HIP in env else CUDA):
        if name in env:
            alone = {name: env[name]}
            left = rocm_sees(left, alone.get)[0]
    seen, notes = rocm_sees(AMD, env.get)
    assert seen == left and len({device.id for device in seen}) == len(seen)
    read = [env[name] for name in (ROCR, ORDINAL, HIP if HIP in env else CUDA) if name in env]
    assert notes or len(seen) == (len(read[-1].split(",")) if read else len(AMD)), "an entry that names nothing is told"


@given(st.dictionaries(st.sampled_from([ROCR, ORDINAL, HIP, CUDA]), AMD_MASKS), st.permutations(range(6)), st.integers(1, 6))
def test_what_a_rank_of_rocm_is_given_shows_just_that(env: dict[str, str], order: list[int], count: int) -> None:
    seen, _ = rocm_sees(AMD, env.get)
    chosen = [seen[place] for place in order if place < len(seen)][:count]
    given_masks = rocm_variables(chosen, env.get)
    assert rocm_sees(AMD, {**env, **given_masks}.get)[0] == chosen
