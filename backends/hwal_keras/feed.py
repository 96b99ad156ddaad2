"""Feed: a tf.data.Dataset of global batches, cut over the replicas.

Each global batch is cut into as many parts as there are replicas, contiguous and of equal length; where its rows do not
divide, the last parts are filled up, and a replica is told how many of its rows are real. Nothing is dropped or counted twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hwal.errors import ScriptError
from hwal.watch.pulse import DATA

if TYPE_CHECKING:
    from hwal_keras.runtime import SharedKerasRuntime


ENDS = (tf.errors.OutOfRangeError, StopIteration)  # what an iterator says at its end, within a graph and outside of one


@dataclass(frozen=True)
class Batch:
    """A global batch on its way to rt.run.

    Attributes:
        parts: (real rows, rows of the global batch, values), one for each replica. size: rows of the global batch.
        trains: whether it is of a training feed.
    """

    parts: Any
    size: int
    trains: bool


class Feed:
    """What rt.feed returns. It is read once for each epoch, by a loop of the script's or by fit.

    Attributes:
        data: the script's dataset, of global batches. number: of it among those of the script.
        train: whether reading it is training.
        batches: how many of them a pass has; None where nobody knows, or it has no end. endless: whether it has none.
    """

    def __init__(self, rt: SharedKerasRuntime, data: Any, train: bool, arrays: bool = False) -> None:
        """`arrays`: the script gave these, and hwal has made the dataset."""
        self.rt = rt
        self.train = train
        self.data = _batched(data, rt.job.settings.global_batch if train else None, rt)
        self.number = rt.passes.number(data)
        self.script = data  # which begins as many passes as a resumed run has behind it
        if rt.static_shapes:
            self.data = _even(self.data, rt, arrays)
        count = int(self.data.cardinality())
        self.batches = count if count >= 0 else None
        self.endless = count == tf.data.INFINITE_CARDINALITY

    def __len__(self) -> int:
        """Global batches of a pass. Raises TypeError where nobody knows, as Python wants it."""
        if self.batches is None:
            raise TypeError("how many batches this dataset has is not known")
        return self.batches

    def __iter__(self) -> Iterator[Batch]:
        """The batches that are left to do of this pass, for rt.run."""
        rt = self.rt
        with rt.reading(self) as skip:
            if skip is None:
                rt.passes.missed(self.number)
                return
            iterator, at = iter(self.parts(skip)), skip
            while not (self.train and rt.finished):
                try:
                    with rt.pulse.during(DATA):
                        parts = rt.take(iterator)
                except ENDS:
                    if at == 0:
                        raise empty("rt.feed") from None
                    return
                at += 1
                yield Batch(parts, int(rt.strategy.experimental_local_results(parts[1])[0]), self.train)

    @property
    def element(self) -> Any:
        """The specs of one global batch."""
        return self.data.element_spec

    def parts(self, skip: int = 0, limit: int | None = None, fit: int | None = None) -> Any:
        """A distributed dataset: an iterator of it yields a global batch's parts, (real rows, size, values) per replica.

        Args:
            skip: global batches that are passed over. limit: how many there are at most, these included. fit: where they come
                pass upon pass, the epoch in which their call of fit began.
        """
        goes_on = limit is not None and (self.endless or fit is not None)
        self.rt.passes.begin(self.number, self.data, limit if goes_on else None, fit)
        data = self.data.repeat() if fit is not None and not self.endless else self.data
        if limit is not None:
            data = data.take(limit)  # nothing is read ahead of these, no further pass begun
        data = data.skip(skip) if skip else data
        replicas = self.rt.strategy.num_replicas_in_sync
        return self.rt.strategy.distribute_datasets_from_function(
            lambda context: cut(data, replicas, context.input_pipeline_id, context.num_input_pipelines, self.rt.static_shapes)
        )


def empty(where: str) -> ScriptError:
    """For a dataset that has given no batch: what is said of none, a loss of 0 say, would be made up."""
    return ScriptError(
        "the dataset is empty", where=where, hint="its files, its filter, its take, or a batch that drops the rest"
    )


def cut(data: Any, replicas: int, pipeline: int = 0, pipelines: int = 1, static: bool = False) -> Any:
    """A dataset of parts, in the order of the replicas, from one of global batches.

    Args:
        replicas: of all processes; this one is number `pipeline` of `pipelines`, and reads the parts of its own.
        static: all batches have the same number of rows, which divides over the replicas.
    """
    here = replicas // pipelines

    spec = data.element_spec

    def parts(*values: Any) -> Any:
        values = _one(values, spec)
        size = tf.shape(tf.nest.flatten(values)[0])[0]
        rows = -(-size // replicas)
        missing = rows * replicas - size

        def part(value: Any) -> Any:
            if ragged:
                value = tf.concat([value, tf.repeat(value[:1], missing, axis=0)], axis=0)
            known = value.shape[0]
            shape = tf.concat([[replicas, -1 if known is None else known // replicas], tf.shape(value)[1:]], axis=0)
            cut = tf.reshape(value, shape)
            cut.set_shape([replicas, None if known is None else known // replicas, *value.shape[1:]])
            return cut[pipeline * here : (pipeline + 1) * here]

        first = pipeline * here + tf.range(here)
        real = tf.clip_by_value(size - first * rows, 0, rows)
        return real, tf.fill([here], size), tf.nest.map_structure(part, values)

    known = tf.nest.flatten(spec)[0].shape[0]
    ragged = not static and (known is None or known % replicas > 0)
    if replicas == 1:
        return data.map(lambda *values: _whole(_one(values, spec)), num_parallel_calls=tf.data.AUTOTUNE).prefetch(
            tf.data.AUTOTUNE
        )
    return data.map(parts, num_parallel_calls=tf.data.AUTOTUNE).unbatch().prefetch(2 * here)


def _whole(values: Any) -> Any:
    size = tf.shape(tf.nest.flatten(values)[0])[0]
    return size, size, values


def _even(data: Any, rt: SharedKerasRuntime, arrays: bool) -> Any:
    """The batches that are full, all of one shape: each other one would be compiled at length. Raises ScriptError."""
    leaf = tf.nest.flatten(data.element_spec)[0]
    size = leaf.shape[0]
    open_end = size is None
    if open_end:
        first = next(iter(data), None)
        if first is None:
            raise empty("rt.feed")
        size = int(tf.nest.flatten(first)[0].shape[0])
    replicas = rt.strategy.num_replicas_in_sync
    if size % replicas:
        fits = size // replicas * replicas
        how = f"batch_size={fits}" if arrays else f"dataset.batch({fits}, drop_remainder=True)"
        raise ScriptError(
            f"a global batch of {size} rows does not divide over {replicas} replicas: {size} = {size // replicas} × {replicas} "
            f"+ {size % replicas}",
            where="model.fit or evaluate" if arrays else "rt.feed",
            why="on this device every replica's part has the same shape, which is compiled",
            hint=how if fits else f"{replicas} rows or more, or fewer devices",
        )
    if not open_end:
        return data
    count = _full(data, size)
    left = "an epoch's last one say" if count is None else f"the last {count[1]} rows of {count[0] * size + count[1]}"
    if count is None or count[1]:
        rt.say_once(
            f"batches of other than {size} rows are left out here, {left}: each new shape is compiled anew. "
            f"dataset.batch({size}, drop_remainder=True) says so"
        )
    data = data.filter(lambda *values: tf.equal(tf.shape(tf.nest.flatten(values)[0])[0], size))
    if count is not None:
        data = data.apply(tf.data.experimental.assert_cardinality(count[0]))
    spec = data.element_spec
    return data.map(
        lambda *values: tf.nest.map_structure(
            lambda value: tf.ensure_shape(value, [size, *value.shape[1:]]), _one(values, spec)
        )
    )


def _full(data: Any, size: int) -> tuple[int, int] | None:
    """(full batches of `size`, rows that are left) of a dataset of which that can be seen, else None."""
    rows, batches = _rows(data), int(data.cardinality())
    return divmod(rows, size) if rows is not None and -(-rows // size) == batches else None


def _rows(data: Any) -> int | None:
    """How many rows are in a dataset that ends in batch(), or in what keeps its batches; None where that cannot be seen. What
    is asked of TensorFlow is not public; tried with 2.21."""
    while True:
        inputs, kind = data._inputs(), type(data).__name__
        if len(inputs) != 1:
            return None
        if kind in ("_BatchDataset", "_ParallelBatchDataset"):
            rows, size = int(inputs[0].cardinality()), int(data._batch_size)
            dropped = rows % size if data._drop_remainder else 0
            return rows - dropped if rows >= 0 else None
        if kind not in ("_PrefetchDataset", "_OptionsDataset"):
            return None
        data = inputs[0]


def _one(values: tuple[Any, ...], spec: Any) -> Any:
    """What a dataset's function is given, as the element that its spec has: a tuple's parts come one by one."""
    return values if isinstance(spec, tuple) else values[0]


def _batched(data: Any, asked: int | None, rt: SharedKerasRuntime) -> Any:
    """The dataset, in batches as --global-batch wants them. Raises ScriptError for what is no batched tf.data.Dataset."""
    if not isinstance(data, tf.data.Dataset):
        raise ScriptError(
            f"rt.feed() takes a tf.data.Dataset, not a {type(data).__name__}",
            hint="tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(GLOBAL_BATCH)",
        )
    leaves = tf.nest.flatten(data.element_spec)
    odd = next((type(leaf).__name__ for leaf in leaves if not isinstance(leaf, tf.TensorSpec)), None)
    if odd is not None:
        raise ScriptError(f"rt.feed() cuts dense tensors over the replicas, and the dataset has a {odd}", hint="densify it")
    if not leaves or any(leaf.shape.rank == 0 for leaf in leaves):
        raise ScriptError(
            "rt.feed() takes a dataset of global batches, and this one is not batched", hint="dataset.batch(GLOBAL_BATCH)"
        )
    if asked is None:
        return data
    rt.say_once(f"--global-batch {asked}: the script's dataset is batched anew")
    rows = _rows(data)
    data = data.unbatch().batch(asked)
    return data if rows is None else data.apply(tf.data.experimental.assert_cardinality(-(-rows // asked)))
