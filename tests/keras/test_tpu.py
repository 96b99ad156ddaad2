"""Keras on a TPU, as far as it goes without one: the order of the calls that open it, through a stand-in for TensorFlow that
records them (no TPU has answered it), and the rules for the data of a TPU Node, on real datasets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy
import pytest
import tensorflow as tf

from hwal.env import Settings
from hwal.errors import DeviceError, ScriptError
from hwal.plan import make_plan
from hwal.runtime import Job
from hwal.topology import Device
from hwal.values import Choice, Decision, Request, Target, World
from hwal_keras.feed import Feed, cut
from hwal_keras.strategy import logical_cpus, mirrored
from hwal_tpu import backend
from hwal_tpu.connect import connect
from hwal_tpu.keras_runtime import TpuKerasRuntime
from hwal_tpu.node import check_data
from tests.keras import jobs

pytestmark = pytest.mark.slow  # TensorFlow alone takes seconds to import

NODE = "grpc://10.0.0.2:8470"


def stand_in(calls: list[str], wrong: Exception | None = None, strategy: Any = None) -> Any:
    """What connect() uses of TensorFlow; `wrong` is what the resolver raises, `strategy` what TPUStrategy is there."""

    def resolver(tpu: str) -> str:
        calls.append(f"TPUClusterResolver {tpu}")
        if wrong is not None:
            raise wrong
        return f"resolver of {tpu}"

    def call(name: str) -> Any:
        made = f"{name} of it" if strategy is None else strategy
        return lambda argument: calls.append(f"{name} {argument}") or made

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


@pytest.mark.parametrize(
    "wrong",
    [
        ValueError("Could not lookup TPU"),
        RuntimeError("Missing runtime dependency on the Google API client."),
        URLError(OSError(-2, "Name or service not known")),
        tf.errors.NotFoundError(None, None, "gone\nmore"),
    ],
)
def test_a_node_that_does_not_answer_is_an_error_in_words(wrong: Exception) -> None:
    with pytest.raises(DeviceError) as caught:
        connect(stand_in([], wrong), NODE)
    assert str(caught.value).splitlines() == [
        f"no TPU answers at {NODE}: {str(wrong).splitlines()[0]}",
        f"  where: TPUClusterResolver(tpu={NODE!r})",
        "  try:   hwal devices; a Node that was preempted must be made anew",
    ]


def test_chips_of_this_machine_that_do_not_answer_are_an_error_in_words() -> None:
    with pytest.raises(DeviceError) as caught:
        connect(stand_in([], ValueError("Please provide a TPU Name to connect to.")), None)
    assert str(caught.value).splitlines() == [
        "no TPU answers at local: Please provide a TPU Name to connect to.",
        "  where: TPUClusterResolver(tpu='local')",
        "  why:   TensorFlow drives the chips of a TPU VM by the package tensorflow-tpu and its libtpu",
        "  try:   pip install tensorflow-tpu",
    ]


# the data of a Node


def test_a_node_reads_arrays_of_this_process_and_files_on_gs() -> None:
    x, y = jobs.rows()
    check_data(tf.data.Dataset.from_tensor_slices((x, y)).map(lambda a, b: (a * 2, b)).shuffle(10).batch(8), NODE)
    names = ["gs://bucket/a.tfrecord", "gs://bucket/b.tfrecord"]
    check_data(tf.data.TFRecordDataset(names).map(lambda s: tf.strings.split(s, "/")[-1]).batch(8), NODE)
    labelled = tf.data.Dataset.from_tensor_slices((names, ["cats/old", "dogs/young"])).shuffle(2)
    check_data(labelled.map(lambda name, label: (tf.io.read_file(name), label)).batch(8), NODE)
    parts = tf.data.Dataset.from_tensor_slices(["train/1.txt", "train/2.txt"])
    check_data(parts.map(lambda part: "gs://bucket/" + part).interleave(tf.data.TextLineDataset).batch(8), NODE)
    check_data(parts.map(lambda part: tf.io.read_file(tf.strings.join(["gs://b", part], "/"))).batch(8), NODE)
    zipped = tf.data.Dataset.zip(tf.data.Dataset.from_tensor_slices(names), parts)
    check_data(zipped.map(lambda name, label: (tf.io.read_file(name), label)).cache().batch(8), NODE)


def test_a_file_of_this_machine_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    path = tmp_path / "rows.tfrecord"
    path.touch()
    captured, slices = tf.constant(str(path)), tf.data.Dataset.from_tensor_slices
    for data in (
        tf.data.TFRecordDataset([str(path)]).batch(8),
        tf.data.TFRecordDataset(["gs://bucket/a", str(path), "gs://bucket/b"], num_parallel_reads=2).repeat().batch(8),
        tf.data.Dataset.list_files(str(path)).interleave(tf.data.TFRecordDataset, num_parallel_calls=2).batch(8),
        tf.data.Dataset.from_tensor_slices(([1], [str(path)])).shuffle(2).map(lambda n, f: (n, tf.io.read_file(f))).batch(8),
        tf.data.Dataset.range(3).map(lambda n: tf.io.read_file(tf.constant(str(path)) + tf.strings.as_string(n))).batch(8),
        tf.data.Dataset.range(3).flat_map(lambda n: tf.data.TextLineDataset(captured)).batch(8),
        tf.data.Dataset.from_tensors([str(path)]).flat_map(slices).shuffle(2).map(tf.io.read_file).batch(8),
        tf.data.Dataset.from_tensor_slices([str(path)]).interleave(tf.data.TextLineDataset).batch(8),
        tf.data.Dataset.from_tensor_slices([str(path)]).map(tf.io.read_file).batch(8),
        slices(["gs://bucket/a"]).concatenate(slices([str(path)])).interleave(tf.data.TFRecordDataset).batch(8),
        tf.data.Dataset.zip(slices([1]), slices([str(path)])).map(lambda n, f: (n, tf.io.read_file(f))).batch(8),
        slices([str(path)]).map(lambda name: tf.io.read_file(tf.strings.regex_replace(name, "a", "b"))).batch(8),
        slices([1, 2]).cache(str(path)).batch(8),
    ):
        with pytest.raises(ScriptError) as caught:
            check_data(data, NODE)
        assert str(caught.value).splitlines() == [
            f"the dataset reads {path!s:.80}, a file of this machine",
            "  where: rt.feed",
            f"  why:   the TPU Node at {NODE} is another machine: it reads its data itself, from gs:// only",
            f"  try:   gsutil cp {path!s:.80} gs://BUCKET/, and that name in the script; or arrays in memory",
        ]


@pytest.mark.parametrize("name", ["x.tfrec", "rows", "data/x", "file", "file:///data/x.tfrec"])
def test_a_name_that_does_not_look_like_a_file_is_one_where_it_is_read(name: str) -> None:
    with pytest.raises(ScriptError, match=f"the dataset reads {name}, a file of this machine"):
        check_data(tf.data.TFRecordDataset(name).batch(8), NODE)


def test_python_in_the_dataset_is_an_error_before_the_first_step() -> None:
    def rows() -> Any:
        yield numpy.ones(3, "float32")

    generated = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((3,), tf.float32)).batch(8)
    called = tf.data.Dataset.range(3).map(lambda n: tf.py_function(lambda m: m, [n], tf.int64)).batch(8)
    for data in (generated, called):
        with pytest.raises(ScriptError) as caught:
            check_data(data, NODE)
        called = "PyFunc" if data is generated else "EagerPyFunc"
        assert str(caught.value).splitlines() == [
            f"the dataset calls Python ({called}: from_generator, py_function or a Hugging Face to_tf_dataset)",
            "  where: rt.feed",
            f"  why:   the TPU Node at {NODE} reads its data itself, and has no Python of this script's",
            "  try:   TFRecord files on gs://…, or arrays in memory: tf.data.Dataset.from_tensor_slices((x, y))",
        ]


def test_a_node_of_a_runtime_checks_what_it_is_fed(tmp_path: Path) -> None:
    """The whole way from a Node's device to the check of its data; logical devices stand for its cores."""
    chosen = Settings(precision="fp32")
    device = Device("tpu", 0, "TPU Node", NODE, native={"fp32": "MXU"})
    request = Request(target=Target("tpu"), settings=chosen)
    plan = make_plan(Choice(Target("tpu"), "tpu", (device,), "a test"), backend.caps, request, Decision("keras", "a test"))
    backend.check(plan)
    rt = TpuKerasRuntime(Job(World(), plan, chosen, backend.caps, tmp_path, "train.py"))
    calls: list[str] = []
    rt.tensorflow = stand_in(calls, strategy=mirrored(logical_cpus(2)))
    rt.start()
    with rt:
        assert calls[-1] == f"TPUStrategy resolver of {NODE}" and rt.compile_options()["jit_compile"] is False
        assert rt.pad_to_multiple_of == 64 and rt.compile_options()["steps_per_execution"] == 32
        rt.feed(jobs.dataset(64))
        local = tf.data.TFRecordDataset([str(tmp_path / "rows.tfrecord")]).batch(8)
        model = jobs.compiled(rt)
        for take in (
            rt.feed,
            lambda data: rt.feed(data, train=False),
            model.fit,
            lambda data: model.fit(jobs.dataset(64), validation_data=data),
            model.evaluate,
        ):
            with pytest.raises(ScriptError, match="a file of this machine"):
                take(local)
        assert rt.steps_done == 0


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
    full = Static(8)
    for even in (data.take(2).unbatch().batch(32, drop_remainder=True), data.unbatch().take(64).batch(32, drop_remainder=True)):
        assert [values[0].shape for values in Feed(full, even, True).data] == [(32, 6), (32, 6)]
    assert not full.said


def test_how_many_rows_are_left_out_is_told_and_how_many_batches_are_left_is_known() -> None:
    """Where TensorFlow knows how many rows there are; elsewhere neither is made up. Evaluation leaves them out as well."""
    for count, full, left in ((69, 2, 5), (64, 2, 0), (24, 1, 0)):
        for train in (True, False):
            rt: Any = Static(8)
            data = tf.data.Dataset.from_tensor_slices(jobs.rows(count)).shuffle(count).batch(32).prefetch(2)
            feed = Feed(rt, data, train)
            assert len(feed) == full == len(list(feed.data))
            assert [f"the last {left} rows of {count}" in text for text in rt.said] == [True] * (left > 0)
    rt = Static(8)
    unknown = tf.data.Dataset.from_tensor_slices(jobs.rows()).filter(lambda x, y: x[0] < 9.0).batch(32)
    assert Feed(rt, unknown, True).batches is None and "an epoch's last one say" in rt.said[0]


def test_an_empty_dataset_is_an_error_in_words() -> None:
    rt: Any = Static(8)
    with pytest.raises(ScriptError, match="the dataset is empty"):
        Feed(rt, tf.data.Dataset.from_tensor_slices(jobs.rows(0)).batch(8), True)


def test_a_batch_that_does_not_divide_shows_the_equation_and_one_that_does() -> None:
    """The hint, followed, gives a batch: of a set that is smaller than one batch, too."""
    for rows, replicas, equation, fits in ((69, 8, "20 = 2 × 8 + 4", 16), (21, 2, "21 = 10 × 2 + 1", 20)):
        rt: Any = Static(replicas)
        data = tf.data.Dataset.from_tensor_slices(jobs.rows(rows))
        size = int(equation.split()[0])
        with pytest.raises(ScriptError) as caught:
            Feed(rt, data.batch(size), True)
        assert caught.value.what == f"a global batch of {size} rows does not divide over {replicas} replicas: {equation}"
        assert caught.value.hint == f"dataset.batch({fits}, drop_remainder=True)"
        assert len(Feed(rt, data.batch(fits, drop_remainder=True), True)) > 0
