"""A double of the torch_xla runtime: lazy tensors, mark_step, a device loader, parameters replaced by `to(device)`.

What a runtime over lazy tensors has to live with: nothing is computed until mark_step; a tensor read before that is
computed on the spot, by a program of its own (a compile on real hardware; an error here), and on a thread that is not the
trainer's it would cut the trainer's graph in two.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from hwal.checkpoint import Manifest
from hwal.runtime import Job, Memory, TorchRuntime

Row = tuple[float, float]


# the framework


class Device:
    """An XLA device: the graph that is being recorded, and how it was used."""

    def __init__(self) -> None:
        self.recorded: list[Lazy] = []
        self.mark_steps = 0
        self.early_reads: list[str] = []  # the threads that read a tensor nobody had computed yet
        self.trainer = threading.get_ident()

    def mark_step(self) -> None:
        assert threading.get_ident() == self.trainer, "mark_step on a thread that does not record the graph"
        self.mark_steps += 1
        for tensor in self.recorded:
            tensor.compute()
        self.recorded = []


class Lazy:
    """A scalar on the device, with the two operations that a linear model needs, and their derivatives."""

    def __init__(
        self, device: Device, compute: Callable[[], float], parents: tuple[tuple[Lazy, Lazy | float], ...] = ()
    ) -> None:
        self.device, self._compute, self.parents = device, compute, parents  # parents: (input, derivative by it)
        self.value: float | None = None
        self.grad: Lazy | None = None
        device.recorded.append(self)

    def compute(self) -> float:
        if self.value is None:
            self.value = self._compute()
        return self.value

    def __float__(self) -> float:
        if self.value is None:
            self.device.early_reads.append(threading.current_thread().name)
        return self.compute()

    def __add__(self, other: Lazy | float) -> Lazy:
        parents = ((self, 1.0), (other, 1.0)) if isinstance(other, Lazy) else ((self, 1.0),)
        return Lazy(self.device, lambda: self.compute() + now(other), parents)

    def __mul__(self, other: Lazy | float) -> Lazy:
        parents = ((self, other), (other, self)) if isinstance(other, Lazy) else ((self, other),)
        return Lazy(self.device, lambda: self.compute() * now(other), parents)

    def reciprocal(self) -> Lazy:
        return Lazy(self.device, lambda: 1.0 / self.compute())

    def detach(self) -> Lazy:
        return Lazy(self.device, self.compute)

    def backward(self) -> None:
        """Adds derivatives to `grad` of every input, as further lazy tensors."""
        for node, factor in self._derivatives():
            node.grad = factor if node.grad is None else node.grad + factor

    def _derivatives(self) -> Iterator[tuple[Lazy, Lazy]]:
        todo: list[tuple[Lazy, Lazy]] = [(self, tensor(self.device, 1.0))]
        while todo:
            node, factor = todo.pop()
            if not node.parents:
                yield node, factor
            todo.extend((parent, factor * by) for parent, by in node.parents)


def now(value: Lazy | float) -> float:
    return value.compute() if isinstance(value, Lazy) else value


def tensor(device: Device, value: float) -> Lazy:
    return Lazy(device, lambda: value)


class Parameter:
    """A weight in host memory."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.grad: None = None


class Model:
    """y = wx + b. `to(device)` puts new objects in the place of its parameters, as torch_xla does."""

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {"w": Parameter(0.0), "b": Parameter(0.0)}

    def to(self, device: Device) -> None:
        self.parameters = {name: tensor(device, p.value) for name, p in self.parameters.items()}

    def loss(self, rows: Iterable[tuple[Lazy, Lazy]]) -> Lazy:
        """Sum of squared errors."""
        total: Lazy | None = None
        for x, y in rows:
            error = self.parameters["w"] * x + self.parameters["b"] + y * -1.0
            total = error * error if total is None else total + error * error
        assert total is not None
        return total


class SGD:
    """An optimizer that holds parameter objects, and therefore goes stale when they are replaced."""

    def __init__(self, parameters: Iterable[Any], lr: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": lr}]

    def update(self, gradients: list[Lazy]) -> list[Lazy]:
        group = self.param_groups[0]
        return [p + g * -group["lr"] for p, g in zip(group["params"], gradients, strict=True)]


class Loader:
    """A DataLoader: its batch size is the global batch."""

    def __init__(self, rows: Iterable[Row], batch_size: int) -> None:
        self.rows, self.batch_size = tuple(rows), batch_size

    def __iter__(self) -> Iterator[tuple[Row, ...]]:
        for at in range(0, len(self.rows), self.batch_size):
            yield self.rows[at : at + self.batch_size]


# the runtime


class XlaDouble(TorchRuntime):
    device: Device

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.autocasts = 0
        self.model: Model | None = None
        self.optimizer: SGD | None = None
        self._logged: list[dict[str, Any]] = []
        self._last = True
        self._rows = self._samples = 0

    def start(self) -> None:
        self.device = Device()
        self.stop_request.install()

    def scope(self, meta: bool = True) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare(self, *objects: Any) -> Any:
        """Moves the model, then points the optimizer's groups at the objects that now carry the same names."""
        self.model = next(o for o in objects if isinstance(o, Model))
        self.optimizer = next((o for o in objects if isinstance(o, SGD)), None)
        names = {id(p): name for name, p in self.model.parameters.items()}
        if self.job.settings.resume is not None and (found := self.checkpoints.newest(self.say)):
            saved = json.loads((found[0] / "weights.json").read_text(encoding="utf-8"))
            for name, parameter in self.model.parameters.items():
                parameter.value = saved[name]
            self.resume_at(found[1].position)
        self.model.to(self.device)
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["params"] = [self.model.parameters[names[id(p)]] for p in group["params"]]
        self.device.mark_step()
        return objects if len(objects) > 1 else objects[0]

    def feed(self, data: Any, train: bool = True) -> Iterator[Any]:
        """The device loader: every micro-batch is moved, and ends with a mark_step of its own."""
        skip = (self.progress.begin_feed() or 0) if train else 0
        if train:
            self.reporter.begin()
        for number, batch in enumerate(data):
            if number < skip:
                continue
            size = self.job.settings.micro_batch or len(batch)
            assert isinstance(size, int)
            for at in range(0, len(batch), size):
                rows = batch[at : at + size]
                self._last, self._rows = at + size >= len(batch), len(rows)
                if train and at == 0:
                    self._sum = self._count = tensor(self.device, 0.0)
                    self._samples = len(batch)
                yield [(tensor(self.device, x), tensor(self.device, y)) for x, y in rows]
                if not train:
                    self.device.mark_step()
            if train and self.finished:
                return

    @contextmanager
    def autocast(self) -> Iterator[None]:
        self.autocasts += 1
        yield

    def backward(self, loss: Any) -> None:
        total, count = loss if isinstance(loss, tuple) else (loss * float(self._rows), float(self._rows))
        total.backward()
        self._sum, self._count = self._sum + total.detach(), self._count + count

    def step(self, optimizer: Any, clip: float | None = None) -> bool:
        if not self._last:
            self.device.mark_step()
            return False
        assert self.model is not None
        scale = self._count.reciprocal()
        old = optimizer.param_groups[0]["params"]
        new = dict(zip(map(id, old), optimizer.update([p.grad * scale for p in old]), strict=True))
        for name, parameter in self.model.parameters.items():
            self.model.parameters[name] = new[id(parameter)].detach()
        optimizer.param_groups[0]["params"] = list(self.model.parameters.values())
        loss = self._sum * scale
        self._mark_step()
        self.step_done(loss, optimizer.param_groups[0]["lr"], self._samples, self._count)
        if self.stop_request:
            self.preempt()
        return True

    def _mark_step(self) -> None:
        self.device.mark_step()
        for values in self._logged:
            super().log(**values)
        self._logged = []

    def log(self, **values: Any) -> None:
        """Kept until the graph has run: the reporter's thread must not read what has not been computed."""
        self._logged.append(values)

    def end(self, error: BaseException | None = None) -> None:
        self._mark_step()
        super().end(error)

    def mean(self, total: Any, count: Any = 1) -> float:
        self.device.mark_step()
        return float(total) / float(count)

    def save(self, path: str | Path | None = None, wait: bool = False) -> Path:
        assert self.model is not None
        self.device.mark_step()
        weights = {name: float(p) for name, p in self.model.parameters.items()}
        target = self.checkpoints.path(self.steps_done) if path is None else Path(path)
        with self.checkpoints.writing(
            target, lambda files: Manifest(self.progress.position(), files, self.framework)
        ) as folder:
            (folder / "weights.json").write_text(json.dumps(weights), encoding="utf-8")
        return target

    def barrier(self) -> None:
        self.device.mark_step()

    def memory(self) -> Memory:
        return Memory(None, None, 16 << 30, "table")
