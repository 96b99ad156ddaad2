"""Optimizers on several replicas: gradients are added up first, and clipped then.

Keras 3 clips each replica's gradients by themselves and adds up what is left: another norm, and another curve, at each number
of replicas. What an optimizer does is a method of its instance here; the names were looked up in Keras 3.15.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hwal.errors import ScriptError

EVERY_FEW_STEPS = {
    "gradient_accumulation_steps": "leave it out: more replicas take a larger global batch at once",
    "ema_overwrite_frequency": "leave it out; optimizer.finalize_variable_values(model.trainable_variables) after training",
}
"""An optimizer's options that several replicas cannot do -> what to do instead."""


def reduce_first(optimizer: Any, strategy: Any) -> None:
    """Has an optimizer's apply() add up the gradients of all replicas before anything else. Once for each is enough.

    Raises ScriptError for one whose update Keras cannot make on several replicas.
    """
    if strategy.num_replicas_in_sync == 1 or getattr(optimizer, "_hwal_reduces", False):
        return
    _check(optimizer, strategy.num_replicas_in_sync)
    apply = optimizer.apply

    def reduced(grads: Any, trainable_variables: Any = None) -> Any:
        context = tf.distribute.get_replica_context()
        if context is not None:
            there = [grad for grad in grads if grad is not None]
            there = [tf.convert_to_tensor(grad) for grad in there]  # of an embedding's too, whose rows are sparse
            added = iter(context.all_reduce("SUM", there) if there else ())
            grads = [None if grad is None else next(added) for grad in grads]
        return apply(grads, trainable_variables)

    optimizer.apply = reduced
    for one in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        if one is not None:
            one._all_reduce_sum_gradients = lambda pairs: pairs
    optimizer._hwal_reduces = True


def _check(optimizer: Any, replicas: int) -> None:
    """Every so many steps these do something else, by a branch in the graph, in which replicas cannot meet (Keras 3.15)."""
    for one in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        for option, instead in EVERY_FEW_STEPS.items():
            if (number := getattr(one, option, None)) is not None:
                raise ScriptError(
                    f"{type(one).__name__}({option}={number}) is for one replica, and {replicas} train",
                    why="TensorFlow's replicas cannot meet in an update that is made every few steps",
                    hint=instead,
                )


def rate_of(optimizer: Any) -> Any:
    """The learning rate of the step that comes next, a float32 scalar: to be asked within that step's graph, before its update.

    From outside a schedule would be computed operation by operation, which takes longer than a short step.
    """
    return tf.cast(tf.convert_to_tensor(optimizer.learning_rate), tf.float32)
