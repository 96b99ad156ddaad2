"""What ranks do to try checkpoints: save while the disk is slow or full, fail, and look at what came back."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hwal.errors import OutputError
from hwal.runtime import TorchRuntime
from hwal_torch.suite.jobs import Trial, loader_of, loss_of
from hwal_torch.suite.tasks import build, weights_of


def steps_of(rt: TorchRuntime, trial: Trial) -> Iterator[torch.nn.Module]:
    """Trains, and yields the model after each global step."""
    model, optimizer, scheduler = build(rt, trial)
    loader = loader_of(trial)
    for _ in rt.epochs(trial.epochs, steps=trial.steps):
        for batch in rt.feed(loader):
            with rt.autocast():
                loss = loss_of(model, batch)
            rt.backward(loss)
            if rt.step(optimizer, clip=trial.clip):
                scheduler.step()
                yield model


def save_held_up(rt: Any, trial: Trial) -> dict[str, Any]:
    """The disk is held up from the save until two steps later; returns what was there at each time."""
    gate, writing = threading.Event(), rt.checkpoints.writing
    seen: dict[str, Any] = {}

    @contextmanager
    def held_up(*args: Any) -> Iterator[Path]:
        gate.wait()
        with writing(*args) as folder:
            yield folder

    rt.checkpoints.writing = held_up
    for model in steps_of(rt, trial):
        if rt.steps_done == trial.save_at:
            folder = rt.save()
            seen["saved"] = copied(model)
            gate_at = rt.steps_done + 2
        elif "saved" in seen and rt.steps_done == gate_at:
            seen |= {"early": folder.exists(), "later": copied(model), "folder": str(folder)}
            gate.set()
    gate.set()
    return seen


def copied(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights in full, as they are now."""
    return {name: value.clone() for name, value in weights_of(model).items()}


def save_each(rt: TorchRuntime, trial: Trial, scores: list[float]) -> list[str]:
    """Saves after every step, each with a score; returns where."""
    saved = []
    for _ in steps_of(rt, trial):
        rt.log(score=scores[rt.steps_done - 1])
        saved.append(str(rt.save()))
    return saved


def save_with_little_room(rt: TorchRuntime, trial: Trial, rank: int) -> None:
    """Saves once; then no file of one rank's may grow beyond a few bytes, and it saves again and trains on."""
    import resource

    for _ in steps_of(rt, trial):
        if rt.steps_done == 1:
            rt.save(wait=True)
        if rt.steps_done == trial.save_at:
            if rt.rank == rank:
                resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            rt.save()


def save_in_vain_and_be_stopped(rt: Any, trial: Trial) -> None:
    """A save fails, there is room again, and a signal comes before the failure is noticed."""
    writing, room = rt.checkpoints.writing, threading.Event()

    @contextmanager
    def full(*args: Any) -> Iterator[Path]:
        if not room.is_set():
            raise OutputError("the checkpoint could not be written: No space left on device")
        with writing(*args) as folder:
            yield folder

    rt.checkpoints.writing = full
    for _ in steps_of(rt, trial):
        if rt.steps_done == trial.save_at:
            rt.save()
            while not rt.saving.failed:
                time.sleep(0.001)
            room.set()
            rt.barrier()
            os.kill(os.getpid(), signal.SIGTERM)


def save_alone(rt: TorchRuntime, trial: Trial) -> None:
    """Only the main rank saves."""
    for _ in steps_of(rt, trial):
        if rt.is_main and rt.steps_done == trial.save_at:
            rt.save()


def save_and_fail(rt: TorchRuntime, trial: Trial) -> None:
    """The script of the last rank fails while a checkpoint is in the making."""
    for _ in steps_of(rt, trial):
        if rt.steps_done == trial.save_at:
            rt.save()
            if rt.rank == rt.world_size - 1:
                raise ValueError("the script's own mistake")


def scaling(rt: Any, trial: Trial) -> tuple[Any, Any]:
    """The state of the loss scaler after prepare, and after the steps that are left, when it is saved."""
    model, optimizer, _ = build(rt, trial)
    begun = rt.gradients.state_dict()
    for _ in rt.epochs(steps=trial.steps):
        for batch in rt.feed(loader_of(trial)):
            with rt.autocast():
                loss = loss_of(model, batch)
            rt.backward(loss)
            rt.step(optimizer)
    rt.save()
    return begun, rt.gradients.state_dict()
