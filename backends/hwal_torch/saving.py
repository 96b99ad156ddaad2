"""How a torch checkpoint is saved: training pays for a copy of what this rank holds, a thread beside it does the rest.

Rank 0 makes the folder and its files. Where ranks hold parts of the tensors each writes its own rows into them, planned by
torch.distributed.checkpoint: it sees to it that every row is written, once, and that an error of one rank is told to all.
Its own writer of safetensors would not do: it writes parts first and all of it again, on one rank; 2.13's turns numbers
without dimensions into zeros, and stops at whole numbers.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_saver import save as save_together
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hwal.checkpoint import Checkpoints, FileSum, Manifest, Position
from hwal.errors import CheckpointError, OutputError
from hwal.host import Host
from hwal.retention import metrics_for
from hwal.shortage import no_room
from hwal_torch import tree
from hwal_torch.channel import Channel
from hwal_torch.checkpoint import STATE, document_of, own_class, state_of, stem, weights
from hwal_torch.shards import local, rows_of, settled
from hwal_torch.tensorfile import LIMIT, Layout, Slot, Writer

if TYPE_CHECKING:
    from hwal_torch.runtime import SharedTorchRuntime


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a tensor, from number `first` on, that this rank can write. `shape`: of the whole tensor."""

    rows: torch.Tensor
    shape: tuple[int, ...]
    first: int = 0


@dataclass(frozen=True)
class Taken:
    """What one rank has of a checkpoint when the script calls rt.save(); it does not change any more.

    Attributes:
        layouts: the files to be. pieces: by the name of a set and of a tensor in it (`model/head.weight`).
        shared: whether other ranks hold pieces too.
        document: for state.json. configs: objects with a save_pretrained.
    """

    target: Path
    layouts: Mapping[str, Layout]
    pieces: Mapping[str, Piece]
    shared: bool
    document: Any
    configs: tuple[Any, ...]
    position: Position
    metrics: Mapping[str, float]
    about: Mapping[str, Any]

    @property
    def slots(self) -> dict[str, Slot]:
        return {f"{name}/{key}": slot for name, layout in self.layouts.items() for key, slot in layout.slots.items()}

    def manifest(self, files: dict[str, FileSum]) -> Manifest:
        return Manifest(
            self.position, files, "torch", versions={"torch": torch.__version__}, about=self.about, metrics=self.metrics
        )


def save(rt: SharedTorchRuntime, path: Path | None, wait: bool, limit: int = LIMIT) -> Path:
    """Saves everything prepared; returns the folder, which is there when the save is done. Every rank calls it."""
    target = path or rt.checkpoints.path(rt.steps_done)
    rt.saving.wait()  # one at a time, also for its copy's sake
    rt.strategy.rest()
    sets = {stem(number): _weights_of(model) for number, model in enumerate(rt.models)}
    sets[STATE] = {}
    document = tree.encode(document_of(rt), sets[STATE], "")
    fetched = rt.fetch(sets)
    mine = _mine(rt, fetched or sets)
    room = wait or fetched is not None or _room(rt, mine)
    if rt.strategy.sharded:
        room = rt.channel.all(room)
    taken = Taken(
        target=target,
        layouts={name: Layout(name, tensors, limit) for name, tensors in (fetched or sets).items()} if rt.is_main else {},
        pieces={name: piece_of(tensor, name, copied=room and not wait and fetched is None) for name, tensor in mine.items()},
        shared=rt.strategy.sharded and rt.world_size > 1,
        document=document,
        configs=_configs(rt),
        position=rt.progress.position(),
        metrics=metrics_for(rt.checkpoints.keep, rt.reporter.latest, rt.say_once) if rt.is_main else {},
        about=_about(rt),
    )
    if rt.is_main:
        job = partial(_lead, taken, rt.checkpoints, rt.channel, rt.reporter.flush)
    else:
        job = partial(_follow, taken, rt.channel)
    if wait:
        job()
    elif room:
        rt.saving.start(job)
    else:
        rt.saving.run(job)
    return target


# what is taken


def _weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    state = state_of(model)
    return {name: state[name] for name in weights(model)}


def _mine(rt: SharedTorchRuntime, sets: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """What this rank writes of all sets: rank 0 all that it has, the others their parts of sharded tensors."""
    return {
        f"{name}/{key}": settled(tensor)
        for name, tensors in sets.items()
        for key, tensor in tensors.items()
        if rt.is_main or isinstance(tensor, DTensor)
    }


def _room(rt: SharedTorchRuntime, mine: Mapping[str, torch.Tensor]) -> bool:
    """Whether the host has memory for a copy, one of every rank here where they are sharded."""
    size = sum(part.numel() * part.element_size() for part in map(local, mine.values()))
    size *= rt.job.world.local_size if rt.strategy.sharded else 1
    told = no_room(size, Host())
    if told is not None:
        rt.say_once(told)
    return told is None


def piece_of(tensor: torch.Tensor, name: str, copied: bool) -> Piece:
    """The rows of a tensor that this rank holds; in memory of their own if `copied`."""
    rows, first = rows_of(tensor.detach(), name)
    if is_traceable_wrapper_subclass(rows):  # type: ignore[unreachable]
        raise CheckpointError(
            f"a {type(rows).__name__} cannot be saved: a checkpoint holds plain tensors",
            where=name,
            hint="another optimizer or quantization, whose state is plain tensors",
        )
    if copied:
        rows = rows.to("cpu", copy=True, memory_format=torch.contiguous_format)
    return Piece(rows, tuple(tensor.shape), first)


def _configs(rt: SharedTorchRuntime) -> tuple[Any, ...]:
    """Copies of the first model's configurations, where it is a transformers model."""
    model: Any = rt.models[0] if rt.models else None
    if not rt.is_main or not hasattr(getattr(model, "config", None), "save_pretrained"):
        return ()
    config = copy.deepcopy(model.config)
    config.architectures = [own_class(model).__name__]
    generation = getattr(model, "generation_config", None)
    return (config,) if generation is None else (config, copy.deepcopy(generation))


def _about(rt: SharedTorchRuntime) -> dict[str, Any]:
    plan = rt.job.plan
    return {
        "backend": plan.backend,
        "precision": plan.precision.value,
        "strategy": rt.strategy_decision.value,
        "virtual_ranks": rt.job.settings.virtual_ranks or "none",
        "global_batch": rt.global_batch,
        "batches": rt.batches,
    }


# what is written


def _lead(taken: Taken, checkpoints: Checkpoints, channel: Channel, flush: Callable[[], None]) -> None:
    """Rank 0: makes the checkpoint, and tells the others what came of it. `flush` has the steps' lines written before."""
    outcome: BaseException | None = None
    try:
        with checkpoints.writing(taken.target, taken.manifest) as folder:
            for layout in taken.layouts.values():
                layout.create(folder)
            if taken.shared:
                channel.share((folder, taken.slots))
                _write_together(taken.pieces, folder, taken.slots, channel)
            else:
                with Writer(folder, taken.slots) as writer:
                    for name, piece in taken.pieces.items():
                        writer.write(name, piece.rows)
            (folder / f"{STATE}.json").write_text(json.dumps(taken.document), encoding="utf-8")
            for config in taken.configs:
                config.save_pretrained(folder)
            flush()
    except BaseException as error:
        outcome = error
        raise
    finally:
        with suppress(RuntimeError):  # the others are gone; the checkpoint is what it is
            channel.share(outcome)


def _follow(taken: Taken, channel: Channel) -> None:
    """The other ranks: write their rows where there are any, and wait for what came of it."""
    told: Any = channel.share()
    if isinstance(told, tuple):
        folder, slots = told
        with suppress(Exception):  # rank 0 has it from the plan, and tells
            _write_together(taken.pieces, folder, slots, channel)
        told = channel.share()
    if isinstance(told, BaseException):
        raise told


def _write_together(pieces: Mapping[str, Piece], folder: Path, slots: Mapping[str, Slot], channel: Channel) -> None:
    """Every rank writes its rows. Raises the same on every rank: OSError, or OutputError where a rank sees no folder."""
    try:
        save_together(
            dict(pieces),
            storage_writer=InPlace(folder, slots),
            planner=Pieces(),
            process_group=channel.group,
        )
    except CheckpointException as failed:
        rank, (error, _) = next(iter(failed.failures.items()))
        if isinstance(error, FileNotFoundError):
            raise OutputError(
                f"rank {rank} does not see the folder that rank 0 made for the checkpoint",
                where=str(folder),
                why="every rank writes its part of a sharded model into it",
                hint="--out on a file system that all machines share",
            ) from None
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, f"{error.strerror} (rank {rank})") from None
        raise error from None


class Pieces(DefaultSavePlanner):
    """Plans to write pieces: of those that several ranks hold, one rank's."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([_item(name, piece) for name, piece in self.state_dict.items()])
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        piece: Piece = self.state_dict[write_item.index.fqn]
        return piece.rows


def _item(name: str, piece: Piece) -> WriteItem:
    offsets = torch.Size([piece.first] + [0] * (len(piece.shape) - 1) if piece.shape else [])
    return WriteItem(
        index=MetadataIndex(name, offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(offsets, piece.rows.shape),
            properties=TensorProperties.create_from_tensor(piece.rows),
            size=torch.Size(piece.shape),
        ),
    )


class InPlace(StorageWriter):
    """Writes rows where they belong in files that are there already."""

    def __init__(self, folder: Path, slots: Mapping[str, Slot]) -> None:
        self._folder = folder
        self._slots = slots

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        with Writer(self._folder, self._slots) as writer:
            for item in plan.items:
                rows, offset = planner.resolve_data(item), item.index.offset
                assert isinstance(rows, torch.Tensor)
                writer.write(item.index.fqn, rows, offset[0] if offset else 0)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(item.index, 0, None) for item in plan.items])
        return done

    def reset(self, checkpoint_id: Any = None) -> None:
        return

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        return

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        return

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True
