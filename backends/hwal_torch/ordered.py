"""Gradients added part by part in the order of the virtual ranks, for losses and weights that are equal to the bit at every
world size (`--deterministic`). It takes the place of both single and ddp.

Floating-point sums depend on their order, so nothing is added up before its turn: every rank keeps the gradients of its
parts, and at the end of a global batch a running sum goes from rank to rank, each adding its parts one by one, in buckets so
that all ranks are at work at once. The last one has the gradient of the whole batch, and everyone gets it from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn

from hwal.errors import ScriptError
from hwal.values import World
from hwal_torch.buffers import Buffers
from hwal_torch.strategy import Strategy, not_brought_together
from hwal_torch.units import Unit

BUCKET = 1 << 20  # bytes of gradients that travel together
ALIGNED = 64  # elements: sums over a gradient take the same way through memory wherever it lies in its bucket

Gradient = torch.Tensor | None


class Ordered(Strategy):
    """A whole model on each rank, gradients summed over the parts of the global batch from left to right.

    Buffers that a forward changes, running statistics above all, begin every part as they were before the step; those
    that the first part left stay.
    """

    def __init__(self, name: str, world: World, parts: int) -> None:
        self.name = name
        self._rank, self._last = world.rank, world.size - 1
        self._per_rank = parts // world.size
        self._parameters: list[nn.Parameter] = []
        self._known: set[int] = set()
        self._kept: list[list[Gradient]] = []  # of each part of this rank; on rank 0 their sum alone
        self._buffers = Buffers()
        self._before: list[torch.Tensor] = []
        self._after: list[torch.Tensor] = []

    def install(self, model: nn.Module) -> None:
        new = [parameter for parameter in model.parameters() if id(parameter) not in self._known]
        self._parameters += new
        self._known.update(map(id, new))
        self._buffers.add(model)
        if self._last:
            for tensor in (*new, *model.buffers()):  # equal from the start, also where the script built them outside of scope()
                dist.broadcast(tensor.detach(), 0)

    def cost(self) -> str:
        """What the order costs in memory, in words."""
        kept = self._per_rank if self._last else 1
        size = sum(p.numel() * p.element_size() for p in self._parameters if p.requires_grad) * kept / (1 << 20)
        what = f"gradients of {kept} part(s) are kept" if self._last else "the sum of gradients is kept beside those of a part"
        return f"deterministic: {what}: +{size:,.{0 if size >= 10 else 2}f} MiB a process"

    # in the loop

    def sync(self, unit: Unit) -> None:
        self.training = True
        if unit.first:
            self._kept = []
            self._before = self._buffers.copies()
        else:
            self._buffers.put(self._before)

    def went_back(self, unit: Unit) -> None:
        if unit.first:
            self._after = self._buffers.copies()
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        if not unit.weight:
            return
        if any(gradient is not None and gradient.layout != torch.strided for gradient in gradients):
            raise ScriptError(
                "a sparse gradient cannot be added in the order of the parts",
                where="--deterministic",
                hint="nn.Embedding(…, sparse=False), or leave out --deterministic",
            )
        if self._kept and not self._rank:  # nobody's sum comes before rank 0's: it need not keep the parts
            _add(self._kept[0], gradients)
        else:
            self._kept.append(gradients)

    def flags(self) -> list[float]:
        columns = zip(*self._kept, strict=True) if self._kept else ((None,) for _ in self._parameters)
        return [float(any(gradient is not None for gradient in column)) for column in columns]

    def reduced(self, flags: list[float]) -> None:
        self._buffers.put(self._after)
        used = [number for number, flag in enumerate(flags) if flag]
        if self._last:
            self._pass_on(used)
        else:
            for number in used:
                self._parameters[number].grad = self._kept[0][number]
        self._kept = []

    def _pass_on(self, used: Sequence[int]) -> None:
        sums: list[torch.Tensor] = []
        sent: list[dist.Work | None] = []
        for bucket in buckets(self._parameters, used):
            first = self._parameters[bucket[0]]
            sizes = [-(-self._parameters[number].numel() // ALIGNED) * ALIGNED for number in bucket]
            # -0.0 and not 0.0 is what leaves every number as it is when added, 0.0 and -0.0 themselves included.
            flat = torch.full((sum(sizes),), -0.0, dtype=first.dtype, device=first.device)
            if self._rank:
                dist.recv(_bytes(flat), self._rank - 1)
            views: list[Gradient] = [
                _like(self._parameters[number], part) for number, part in zip(bucket, flat.split(sizes), strict=True)
            ]
            for part in self._kept:
                _add(views, [part[number] for number in bucket])
                for number in bucket:
                    part[number] = None  # its memory is that of the next bucket
            if self._rank < self._last:
                sent.append(dist.isend(_bytes(flat), self._rank + 1))
            for number, view in zip(bucket, views, strict=True):
                self._parameters[number].grad = view
            sums.append(flat)
        for work in (*sent, *[dist.broadcast(_bytes(flat), self._last, async_op=True) for flat in sums]):
            if work is not None:
                work.wait()

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            if any(parameter.grad is not None and id(parameter) not in self._known for parameter in group["params"]):
                raise not_brought_together("its parameter was not prepared")


def buckets(parameters: Sequence[torch.Tensor], used: Iterable[int]) -> Iterator[list[int]]:
    """The numbers of the used parameters, in order, together of BUCKET bytes or little more, and of one type."""
    bucket: list[int] = []
    size = 0
    for number in used:
        parameter = parameters[number]
        if bucket and (size >= BUCKET or parameter.dtype != parameters[bucket[0]].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(number)
        size += parameter.numel() * parameter.element_size()
    if bucket:
        yield bucket


def _add(sums: list[Gradient], gradients: Sequence[Gradient]) -> None:
    """Adds gradients to their sums, in place; a sum begins with the first gradient there is."""
    totals, added = [], []
    for number, gradient in enumerate(gradients):
        if gradient is None:
            continue
        if (total := sums[number]) is None:
            sums[number] = gradient
        else:
            totals.append(total)
            added.append(gradient)
    if added:
        torch._foreach_add_(totals, added)


def _like(parameter: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """The first of `memory` in the shape and strides that autograd gives the gradient of a parameter."""
    strides = torch.empty_like(parameter, device="meta").stride()
    return memory[: parameter.numel()].as_strided(parameter.shape, strides, memory.storage_offset())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A flat tensor for sending: every backend moves bytes, not every one numbers of every type."""
    return tensor.view(torch.uint8)
