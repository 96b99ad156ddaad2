"""What a training loop runs into, in words."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hwal.errors import ScriptError


def mixes_samples(model: nn.Module) -> str | None:
    """Which layers mix the samples of a batch, and so see another batch at another world size or micro-batch."""
    mixing = {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}
    if not mixing:
        return None
    names = f"{', '.join([*mixing][:3])}{' …' if len(mixing) > 3 else ''}"
    if all(isinstance(layer, nn.SyncBatchNorm) for layer in mixing.values()):
        return (
            f"{names}: SyncBatchNorm sees one micro-batch of every rank, so the curve depends on how the global batch is cut "
            "into micro-batches; without --micro-batch and --virtual-ranks it sees the whole, and GroupNorm mixes no samples"
        )
    return (
        f"{names}: batch norm sees one micro-batch of one rank, so the curve depends on how the global batch is cut; "
        "GroupNorm does not, and SyncBatchNorm spans the ranks"
    )


def never_stepped() -> ScriptError:
    """The error for a global batch whose gradients would leak into the next one."""
    return ScriptError(
        "a global batch ended without rt.step()",
        why="its gradients would leak into the next one",
        hint="call rt.step(optimizer) after every rt.backward(loss); it knows when the global batch is complete",
    )


def other_batch(skip: int, done: int, size: int) -> ScriptError:
    """The error for a run that goes on within a pass whose `skip` batches, of `done` samples, were not of `size`."""
    return ScriptError(
        f"the checkpoint stands after {skip} batches of {done / skip:g} samples in this pass, the batch now has {size}",
        why="samples would be trained on twice, or left out",
        hint="resume with the same global batch, or from a checkpoint that was saved between two epochs",
    )
