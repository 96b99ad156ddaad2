"""An argument may be a number of Python's, and so may what Python's operators make of it: no error where a number is right."""

from __future__ import annotations

import pytest

from hwal.lint import check

HEAD = "import math\nimport keras\nimport tensorflow as tf\n\nFILTERS = [64, 128, 256]\n\n"


def told(text: str) -> list[str]:
    return [found.code for found in check(HEAD + text, target="tpu") if found.severity == "error"]


@pytest.mark.parametrize(
    ("arguments", "result", "error"),
    [
        ("q, k, d_k", "tf.matmul(q, k, transpose_b=True) / math.sqrt(d_k)", False),
        ("image, sigma", "tf.range(2 * int(math.ceil(3 * sigma)) + 1)", False),
        ("image, angle", "image * math.cos(math.radians(-angle))", False),
        ("x, block_id, total", "tf.nn.dropout(x, 1 - math.sqrt(block_id / total))", False),
        ("step, total", "tf.constant(0.5 * (1 + math.cos(math.pi * step / total)))", False),
        ("epoch, lr, drop", "tf.maximum(lr * math.pow(drop, math.floor(epoch / 10)), 1e-5)", False),
        ("x, hw", "tf.reshape(x, [math.ceil(hw[0] / 2), -1])", False),
        ("x, sides", "tf.stack([x * math.ceil(side / 2) for side in sides])", False),
        ("x, level", "tf.nn.relu(x) * scaled(level + 1)", False),
        ("x, level", "tf.nn.relu(x) / math.sqrt(tf.reduce_sum(x))", True),
        ("x, level", "tf.nn.relu(x) / math.sqrt(level * tf.size(x))", True),
        ("x, level: tf.Tensor", "tf.nn.relu(x) / math.sqrt(level + 1)", True),
        ("x, level", "tf.nn.relu(x) * FILTERS[level - 1]", False),
        ("x, level", "tf.nn.relu(x) * FILTERS[2 * level]", False),
        ("x, level", "tf.nn.relu(x) * FILTERS[level + tf.argmax(x)]", True),
        ("x, level: tf.Tensor", "tf.nn.relu(x) * FILTERS[level - 1]", True),
    ],
)
def test_of_a_function_that_is_assumed_to_be_compiled(arguments: str, result: str, error: bool) -> None:
    helper = "def scaled(n):\n    return math.sqrt(n)\n\n"
    assert told(f"{helper}def computed({arguments}):\n    return {result}\n") == (["XLA401"] if error else [])


@pytest.mark.parametrize(
    ("place", "error"),
    [("index - 1", False), ("index", False), ("2 * index + 1", False), ("tf.argmax(x)", True), ("tf.argmax(x) + index", True)],
)
def test_of_a_layer_that_takes_from_its_own_list(place: str, error: bool) -> None:
    text = (
        "class Net(keras.layers.Layer):\n    def build(self, shape):\n        self.table = [1.0, 2.0, 3.0]\n\n"
        f"    def call(self, x, index):\n        return x * self.table[{place}]\n"
    )
    assert told(text) == (["XLA401"] if error else [])


def test_of_a_function_that_asks_for_a_trace_it_is_one() -> None:
    assert told("@tf.function(jit_compile=True)\ndef f(x):\n    return x * math.sqrt(x)\n") == ["XLA401"]
