"""Keras on a TPU, as far as it goes without one: the order of the calls that open it, through a stand-in for TensorFlow that
records them (no TPU has answered it), and the rules for the data of a TPU Node, on real datasets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import tensorflow as tf

from hwal.errors import DeviceError, ScriptError
from hwal_keras.feed import Feed, cut
from hwal_tpu.connect import connect
from hwal_tpu.node import check_data
from tests.keras import jobs

pytestmark = pytest.mark.slow  # TensorFlow alone takes seconds to import

NODE = "grpc://10.0.0.2:8470"


def stand_in(calls: list[str], wrong: Exception | None = None) -> Any:
    """What connect() uses of TensorFlow; `wrong` is what the resolver raises."""

    def resolver(tpu: str) -> str:
        calls.append(f"TPUClusterResolver {tpu}")
        if wrong is not None:
            raise wrong
        return f"resolver of {tpu}"

    def call(name: str) -> Any:
        return lambda argument: calls.append(f"{name} {argument}") or f"{name} of it"

    return SimpleNamespace(
        distribute=SimpleNamespace(
            cluster_resolver=SimpleNamespace(TPUClusterResolver=resolver), TPUStrategy=call("TPUStrategy")
        ),
        config=SimpleNamespace(experimental_connect_to_cluster=call("connect")),
        tpu=SimpleNamespace(experimental=SimpleNamespace(initialize_tpu_system=call("initialize"))),
        errors=tf.errors,
    )


@pytest.mark.parametrize(("address", "name"), [(None, "local"), (NODE, NODE)])
def test_a_tpu_is_found_connected_initialised_and_then_used(address: str | None, name: str) -> None:
    calls: list[str] = []
    assert connect(stand_in(calls), address) == "TPUStrategy of it"
    whole = f"resolver of {name}"
    assert calls == [f"TPUClusterResolver {name}", f"connect {whole}", f"initialize {whole}", f"TPUStrategy {whole}"]


@pytest.mark.parametrize("wrong", [ValueError("Please provide a TPU Name"), tf.errors.NotFoundError(None, None, "gone\nmore")])
def test_a_tpu_that_does_not_answer_is_an_error_in_words(wrong: Exception) -> None:
    with pytest.raises(DeviceError) as caught:
        connect(stand_in([], wrong), NODE)
    first = str(wrong).splitlines()[0]
    assert caught.value.what == f"no TPU answers at {NODE}: {first}" and "preempted" in (caught.value.hint or "")


# the data of a Node


def test_a_node_reads_arrays_of_this_process_and_files_on_gs() -> None:
    x, y = jobs.rows()
    check_data(tf.data.Dataset.from_tensor_slices((x, y)).map(lambda a, b: (a * 2, b)).shuffle(10).batch(8), NODE)
    check_data(tf.data.TFRecordDataset(["gs://bucket/a.tfrecord"]).batch(8), NODE)


def test_a_file_of_this_machine_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    path = tmp_path / "rows.tfrecord"
    path.touch()
    for data in (
        tf.data.TFRecordDataset([str(path)]).batch(8),
        tf.data.Dataset.from_tensor_slices([str(path)]).interleave(tf.data.TextLineDataset).batch(8),
        tf.data.Dataset.from_tensor_slices([str(path)]).map(tf.io.read_file).batch(8),
    ):
        with pytest.raises(ScriptError) as caught:
            check_data(data, NODE)
        assert caught.value.what == f"the dataset reads {path!s:.80}, a file of this machine"
        assert caught.value.why == f"the TPU Node at {NODE} is another machine: it reads its data itself, from gs:// only"
        assert "gsutil cp" in (caught.value.hint or "")


def test_python_in_the_dataset_is_an_error_before_the_first_step() -> None:
    def rows() -> Any:
        yield numpy.ones(3, "float32")

    generated = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((3,), tf.float32)).batch(8)
    called = tf.data.Dataset.range(3).map(lambda n: tf.py_function(lambda m: m, [n], tf.int64)).batch(8)
    for data in (generated, called):
        with pytest.raises(ScriptError) as caught:
            check_data(data, NODE)
        assert caught.value.what.startswith("the dataset calls Python (")
        assert "has no Python of this script's" in (caught.value.why or "")


# one shape


class Static:
    """As much of a Runtime of static shapes as a Feed asks."""

    static_shapes = True

    def __init__(self, replicas: int) -> None:
        self.strategy = SimpleNamespace(num_replicas_in_sync=replicas)
        self.job = SimpleNamespace(settings=SimpleNamespace(global_batch=None))
        self.passes = SimpleNamespace(number=lambda data: 0)
        self.said: list[str] = []

    def say_once(self, text: str) -> None:
        self.said.append(text)


def test_a_ragged_end_is_left_out_and_told_where_shapes_are_static() -> None:
    rt: Any = Static(8)
    data = tf.data.Dataset.from_tensor_slices(jobs.rows()).batch(32)
    feed = Feed(rt, data, True)
    assert [len(x) for x, _ in feed.data] == [32, 32] and feed.element[0].shape[0] == 32
    assert "batches of other than 32 rows are left out" in rt.said[0]
    parts = list(cut(feed.data, 8, static=True))
    assert len(parts) == 16 and all(int(real) == 4 and values[0].shape == (4, 6) for real, _, values in parts)
    rt = Static(8)
    assert Feed(rt, data.take(2).unbatch().batch(32, drop_remainder=True), True).data is not None and not rt.said


def test_a_batch_that_does_not_divide_shows_the_equation() -> None:
    rt: Any = Static(8)
    with pytest.raises(ScriptError) as caught:
        Feed(rt, tf.data.Dataset.from_tensor_slices(jobs.rows()).batch(20), True)
    assert caught.value.what == "a global batch of 20 rows does not divide over 8 replicas: 20 = 2 × 8 + 4"
    assert caught.value.hint == "dataset.batch(24, drop_remainder=True)"
