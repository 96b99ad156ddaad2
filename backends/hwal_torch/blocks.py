"""Which parts of a model are its blocks: the units that FSDP shards, that --grad-checkpoint recomputes and --compile compiles.

Said by a file (Wrap), else by the model itself (`_no_split_modules`), else the class that repeats, else by size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from hwal.errors import PlanError, nearest
from hwal.values import Wrap

LARGE = 1_000_000  # parameters: from here on a part is worth being gathered on its own
CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)

Named = list[tuple[str, nn.Module]]


@dataclass(frozen=True)
class Blocks:
    """A model's blocks, in the order of its modules, with their names in it; and one sentence that says how they were found."""

    names: tuple[str, ...]
    modules: tuple[nn.Module, ...]
    why: str

    def __len__(self) -> int:
        return len(self.modules)

    @property
    def outermost(self) -> tuple[nn.Module, ...]:
        """Those that lie in no other block."""
        return tuple(part for _, part in not_nested(zip(self.names, self.modules, strict=True)))


def find_blocks(model: nn.Module, wrap: Wrap | None = None) -> Blocks:
    """The blocks of `model`. The model itself is never one, nor is a part that has no forward or no parameters.

    Blocks lie within each other only where `wrap` or their size makes them so. One that shares a parameter with something
    outside of it is left out, because FSDP2 keeps a shared parameter in one unit.

    Raises PlanError when `wrap` names a class that the model has not.
    """
    found, why = _said(model, wrap) if wrap is not None else _own(model) or _repeated(model) or _large(model, LARGE)
    shared = _sharing(model, found)
    kept = [(name, part) for name, part in found if id(part) not in shared]
    text = f"{counted(part for _, part in kept)}, {why}" if kept else f"no blocks: {why}"
    if shared:
        text += f"; without {counted(part for _, part in found if id(part) in shared)}, sharing parameters with other parts"
    return Blocks(tuple(name for name, _ in kept), tuple(part for _, part in kept), text)


# four ways to find them: each gives the blocks and the reason


def _said(model: nn.Module, wrap: Wrap) -> tuple[Named, str]:
    if not wrap.classes:
        return ([], "one unit was asked for") if wrap.min_params is None else _large(model, wrap.min_params)
    there = dict.fromkeys(type(part).__name__ for _, part in _parts(model))
    for name in wrap.classes:
        if name not in there:
            near = nearest(name, there)
            raise PlanError(
                f"no part of {type(model).__name__} is a {name}",
                where=f"class to wrap: {name}",
                why=f"its parts are {_listed(list(there)) or 'without parameters'}",
                hint=f"did you mean {near}?" if near else None,
            )
    return [(name, part) for name, part in _parts(model) if type(part).__name__ in wrap.classes], "the classes asked for"


def _own(model: nn.Module) -> tuple[Named, str] | None:
    """What transformers models say of themselves; one of them may be a part of the script's own model."""
    classes = {name for part in model.modules() for name in getattr(part, "_no_split_modules", None) or ()}
    found = not_nested((name, part) for name, part in _parts(model) if type(part).__name__ in classes)
    return (found, "the model's own _no_split_modules") if found else None


def _repeated(model: nn.Module) -> tuple[Named, str] | None:
    groups = list(_repeats("", model))
    places = [place or type(model).__name__ for place, _ in groups]
    found = [block for _, blocks in groups for block in blocks]
    return (found, f"the class that repeats in {_listed(places)}") if found else None


def _large(model: nn.Module, threshold: int) -> tuple[Named, str]:
    """Parts with `threshold` parameters that no part below them has taken."""
    left: dict[int, int] = {}  # id of a part -> its parameters that no block below it holds
    counted: set[int] = set()
    found: Named = []
    for name, part in reversed(list(model.named_modules())):  # what lies below comes first
        own = [p for p in part.parameters(recurse=False) if id(p) not in counted]
        counted.update(map(id, own))
        left[id(part)] = sum(p.numel() for p in own) + sum(left[id(child)] for child in part.children())
        if left[id(part)] >= threshold and _can_be(part) and part is not model:
            found.append((name, part))
            left[id(part)] = 0
    why = f"of {threshold:,} parameters or more each" if found else f"no class repeats, no part has {threshold:,} parameters"
    return found[::-1], why


# what they share


def _parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every part that can be a block, once, by its first name."""
    return ((name, part) for name, part in model.named_modules() if part is not model and _can_be(part))


def _can_be(part: nn.Module) -> bool:
    """Whether a part is called and has parameters: a ModuleList is not called, and hooks on it would never run."""
    return type(part).forward is not nn.Module.forward and next(part.parameters(), None) is not None


def _repeats(name: str, part: nn.Module) -> Iterator[tuple[str, Named]]:
    """The outermost containers that repeat a class, each with its blocks.

    Leaves (Linear, ReLU …) are no blocks. A Sequential may be one (convolution, norm, ReLU), unless blocks repeat in it.
    """
    children = [(f"{name}.{child}".removeprefix("."), below) for child, below in part.named_children()]
    blocks: Named = []
    if isinstance(part, CONTAINERS):
        composed = [(where, child) for where, child in children if _can_be(child) and next(child.children(), None) is not None]
        count = Counter(type(child) for _, child in composed)
        blocks = [(where, child) for where, child in composed if count[type(child)] > 1]
    sequences = {id(child): list(_repeats(where, child)) for where, child in blocks if type(child) is nn.Sequential}
    if any(sequences.values()):
        blocks = [(where, child) for where, child in blocks if id(child) not in sequences]
    if blocks:
        yield name, blocks
    taken = {id(child) for _, child in blocks}
    for where, child in children:
        if id(child) not in taken:
            yield from sequences.get(id(child)) or _repeats(where, child)


def not_nested(found: Iterable[tuple[str, nn.Module]]) -> Named:
    """Without those parts that lie in an earlier one; named_modules() gives the outer ones first."""
    kept: Named = []
    inside: set[int] = set()
    for name, part in found:
        if id(part) not in inside:
            kept.append((name, part))
            inside.update(map(id, part.modules()))
    return kept


def _sharing(model: nn.Module, found: Named) -> set[int]:
    """The ids of those blocks that hold a parameter which something outside of them holds too."""
    blocks = {id(part) for _, part in found}
    holders: dict[int, set[frozenset[int]]] = {}  # id of a parameter -> for each place of it, the blocks around it
    seen: set[tuple[int, frozenset[int]]] = set()
    waiting: list[tuple[nn.Module, frozenset[int]]] = [(model, frozenset())]
    while waiting:
        part, around = waiting.pop()
        around = around | ({id(part)} & blocks)
        if (id(part), around) in seen:
            continue
        seen.add((id(part), around))
        for parameter in part.parameters(recurse=False):
            holders.setdefault(id(parameter), set()).add(around)
        waiting.extend((child, around) for child in part.children())
    return {block for places in holders.values() for block in frozenset.union(*places) - frozenset.intersection(*places)}


def counted(parts: Iterable[nn.Module]) -> str:
    """`6 × EncoderLayer and 6 × DecoderLayer`."""
    count = Counter(map(class_name, parts))
    return _listed([f"{number} × {name}" for name, number in count.items()])


def class_name(part: nn.Module) -> str:
    """The name of a part's class, as it was before fully_shard put its own in front."""
    return type(part).__name__.removeprefix("FSDP")


def _listed(words: Sequence[str]) -> str:
    shown = list(words[:3]) + (["…"] if len(words) > 3 else [])
    return ", ".join(shown) if len(words) > 3 else " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
