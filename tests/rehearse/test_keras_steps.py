"""The train steps of the Keras examples, compiled for TPUs by their own compiler, on a machine without one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from hwal.display import size
from hwal.errors import HwalError, UsageError
from hwal_keras import recipe
from hwal_tpu import rehearse

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WITH_LIBTPU = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu and jax are in the environment of ci/rehearse.txt"
)


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lowered(name: str) -> tuple[bytes, int]:
    """The step of an example, and the bytes of its parameters in fp32."""
    pixels, labels = tf.TensorSpec((64, 64), tf.float32), tf.TensorSpec((64,), tf.int64)
    if name == "recipe":
        size = recipe.SIZES["tiny"]
        model = recipe.network(size, size.seq_len)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(recipe.make_optimizer("adamw", size.lr, 200), loss)
        tokens = tf.TensorSpec((size.batch, size.seq_len), tf.int32)
        step = rehearse.lower(model, (tokens, tokens))
    elif name == "train_keras":
        model = example(name).network()
        model.compile(
            keras.optimizers.AdamW(), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
        )
        step = rehearse.lower(model, (tf.TensorSpec((64, 8, 8, 1), tf.float32), labels))
    else:
        module = example(name)
        model, optimizer = module.network(), keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        step = rehearse.lower_step(module.make_steps(model, optimizer)[0], (pixels, labels))
    return step, 4 * model.count_params()


@WITH_LIBTPU
@pytest.mark.timeout(900)  # the recipe's, four times, is a minute and a half of a core, whatever the number of its blocks
@pytest.mark.parametrize("name", ["train_keras", "custom_loop_keras", "recipe"])
def test_every_examples_step_compiles_for_every_generation(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    step, parameters = lowered(name)
    made = list(rehearse.compiled(step))
    assert [one.generation for one in made] == list(rehearse.TOPOLOGIES)
    with capsys.disabled():  # the table of ci/check
        print("".join(f"\n{name:18} {row(one)}" for one in made), end=" ")
    for one in made:
        assert one.error is None
        assert one.arguments >= 3 * parameters  # Adam's two averages beside them
        assert one.aliased >= 3 * parameters  # and all are updated in place
        assert one.code > 0 and one.total < 1 << 30


def row(one: rehearse.Compiled) -> str:
    parts = ("arguments", "outputs", "aliased", "temporaries", "code")
    return f"{one.generation:4} " + ", ".join(f"{name} {size(getattr(one, name))}" for name in parts)


@WITH_LIBTPU
def test_what_does_not_fit_is_told_in_the_compilers_words() -> None:
    model = keras.Sequential([keras.Input((1024,)), keras.layers.Dense(1024)])
    model.compile("sgd", "mse")
    rows = tf.TensorSpec((1 << 22, 1024), tf.float32)  # 16 GiB, of which only the shape is lowered
    made = rehearse.rehearse(model, (rows, rows), "v5e")
    assert made.error is not None and "exceeds available HBM" in made.error, made


def test_a_generation_that_is_none_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        rehearse.rehearse(None, None, "v5ee")
    assert caught.value.hint == "did you mean v5e?" and "v4, v5e, v5p, v6e" in caught.value.what


def test_an_open_shape_is_refused_with_what_closes_it() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(UsageError) as caught:
        rehearse.lower(model, (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1))))
    assert caught.value.hint == "dataset.batch(N, drop_remainder=True)"


@pytest.mark.skipif(importlib.util.find_spec("jax") is not None, reason="it is about an environment without jax")
def test_without_the_compiler_it_says_what_to_install() -> None:
    with pytest.raises(HwalError) as caught:
        list(rehearse.compiled(b"", ["v5e"]))
    assert caught.value.where is not None and caught.value.where.startswith("TPU v5e, -m hwal_tpu.ahead")
    assert caught.value.hint == "pip install 'hwal[rehearse-tpu]'"
