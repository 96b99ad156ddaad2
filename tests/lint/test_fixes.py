"""Fixes, run: a program before and after `--fix` gives the same in eager. TensorFlow's need TensorFlow, torch's torch."""

from __future__ import annotations

from typing import Any

import pytest

from hwal.lint import check
from hwal.lint.config import Config
from hwal.lint.discover import Text
from hwal.lint.engine import Settings
from hwal.lint.fixing import fix_text

HEAD = "import keras\nimport tensorflow as tf\n\n\n"
JIT = HEAD + "@tf.function(jit_compile=True)\n"
X = "tf.constant([[1.0, -2.0, 3.0, 4.0], [5.0, 6.0, -7.0, 8.0]])"

# code -> a program, and what is computed with it before and after
TENSORFLOW: list[tuple[str, str, str]] = [
    (
        "XLA001",
        HEAD + "class L(keras.layers.Layer):\n    def call(self, x):\n        if tf.reduce_sum(x) > 0.0:\n"
        "            return x * 2.0\n        return x\n",
        f"[L().call({X}), L().call(-{X})]",
    ),
    (
        "XLA001",
        HEAD + "class L(keras.layers.Layer):\n    def call(self, x):\n        if tf.reduce_sum(x) > 0.0:\n"
        "            y = x * 2.0\n        else:\n            y = x\n        return y\n",
        f"[L().call({X}), L().call(-{X})]",
    ),
    (
        "XLA001",
        HEAD + "class L(keras.layers.Layer):\n    def call(self, x):\n        x = x + 1.0\n        if tf.reduce_sum(x) > 0.0:\n"
        "            x = x * 2.0\n        return x\n",
        f"[L().call({X}), L().call(-{X})]",
    ),
    (
        "XLA001",
        HEAD
        + "class L(keras.layers.Layer):\n    def call(self, x):\n        return x * 2.0 if tf.reduce_sum(x) > 0.0 else x\n",
        f"[L().call({X}), L().call(-{X})]",
    ),
    (
        "XLA003",
        JIT + "def f(x):\n    if bool(tf.reduce_sum(x) > 3.0):\n        x = x * 2.0\n    return x\n",
        f"[f({X}), f(-{X})]",
    ),
    ("XLA003", JIT + "def f(x):\n    assert tf.reduce_all(x > -10.0)\n    return x + 1.0\n", f"[f({X})]"),
    ("XLA006", JIT + "def f(x):\n    return tf.stack([row * 2.0 for row in x])\n", f"[f({X})]"),
    (
        "XLA006",
        HEAD + "class L(keras.layers.Layer):\n    def call(self, x):\n        total = tf.zeros([4])\n        for row in x:\n"
        "            total += row\n        return total\n",
        f"[L().call({X})]",
    ),
    (
        "XLA008",
        JIT + "def f(x):\n    rows = []\n    for i in tf.range(3):\n        rows.append(x * tf.cast(i, tf.float32))\n"
        "    return tf.stack(rows)\n",
        f"[f({X})]",
    ),
    ("XLA102", JIT + 'def f(x):\n    tf.print("x", x)\n    return x * 2.0\n', f"[f({X})]"),
    (
        "XLA104",
        HEAD + "TABLE = tf.lookup.StaticHashTable(\n    tf.lookup.KeyValueTensorInitializer([0, 2], "
        "tf.constant([10, 20], tf.float32)), -1\n)\n\n\n@tf.function(jit_compile=True)\ndef f(ids):\n"
        "    return TABLE.lookup(ids) + TABLE[ids]\n",
        "[f(tf.constant([2, 0, 1, 3, -7])), f(tf.constant([[0, 2]]))]",
    ),
    (
        "XLA104",
        HEAD + "class L(keras.layers.Layer):\n    def __init__(self):\n        super().__init__()\n"
        "        self.table = tf.lookup.StaticHashTable(\n            initializer=tf.lookup.KeyValueTensorInitializer(\n"
        "                keys=[3, 1], values=[0.5, 2.0]), default_value=0.0)\n\n    def call(self, x):\n"
        "        return self.table.lookup(x)\n",
        "[L().call(tf.constant([0, 1, 2, 3, 4]))]",
    ),
    (
        "XLA105",
        JIT + "def f(x, training=False):\n    return tf.cond(training, lambda: x * 0.5, lambda: x)\n",
        "[]",  # the program before raises
    ),
    ("XLA107", JIT + "def f(x):\n    return tf.cast(tf.cast(x, tf.float64) * 2.0, tf.float32)\n", f"[f({X})]"),
    ("XLA201", JIT + "def f(x):\n    return tf.reduce_sum(tf.boolean_mask(x * 2.0, x > 0.0))\n", f"[f({X}), f(-{X})]"),
    ("XLA201", JIT + "def f(x):\n    return tf.reduce_sum(x[x > 2.0])\n", f"[f({X}), f(-{X})]"),
    ("XLA201", JIT + "def f(x):\n    m = x > 2.0\n    return tf.reduce_mean(x[m])\n", f"[f({X})]"),
    (
        "XLA201",
        JIT + "def f(y, p):\n    m = y > p\n    return tf.reduce_mean(tf.boolean_mask(tf.square(y - p), m))\n",
        f"[f({X}, -{X})]",
    ),
    (
        "XLA202",
        JIT + "def f(x, n):\n    return tf.reshape(x, [2, n, 2]) * 2.0\n",
        f"[f({X}, tf.constant(2))]",
    ),
    (
        "XLA207",
        JIT + "def f(x):\n    with tf.GradientTape() as tape:\n        tape.watch(x)\n"
        "        y = tf.while_loop(lambda i, v: i <= 4, lambda i, v: (i + 1, v * v), (0, x * 0.1))[1]\n"
        "    return tape.gradient(y, x)\n",
        f"[f({X})]",
    ),
    (
        "XLA207",
        JIT + "def f(x):\n    with tf.GradientTape() as tape:\n        tape.watch(x)\n        i = tf.constant(0)\n"
        "        y = x\n        while i < 3 and tf.reduce_sum(y) < 9.0:\n            y = y * 1.5\n            i += 1\n"
        "    return tape.gradient(y, x)\n",
        f"[f({X}), f(-{X})]",
    ),
    (
        "XLA206",
        JIT + "def f(x):\n    rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True)\n    for i in tf.range(3):\n"
        "        rows = rows.write(i, x * tf.cast(i, tf.float32))\n    return rows.stack()\n",
        f"[f({X})]",
    ),
    (
        "XLA208",
        JIT + "def f(x, n):\n    for i in tf.range(n):\n        x = x + 1.0\n    return x\n",
        f"[f({X}, tf.constant(3)), f({X}, 0)]",
    ),
]

STEP = "import torch\nimport torch_xla\n\n\ndef train(model, loader, optimizer):\n    history = []\n    total = 0.0\n"
LOOP = "    for x in loader:\n        loss = model(x)\n        loss.backward()\n        optimizer.step()\n"
TORCH: list[tuple[str, str]] = [
    ("PTX611", STEP + LOOP + "        history.append(loss)\n    return history\n"),
    ("PTX611", STEP + LOOP + "        total += loss\n    return [total]\n"),
    ("PTX603", STEP + LOOP + "        x[x > 0.5] = 0.25\n        history.append(x)\n    return history\n"),
]


def fixed(text: str, code: str) -> str:
    after, number = fix_text(Text("a.py", text), Settings(select=(code,)), Config(), unsafe=True)
    assert number
    assert fix_text(Text("a.py", after), Settings(select=(code,)), Config(), unsafe=True)[1] == 0, "nothing is left to fix"
    return after


@pytest.mark.slow  # TensorFlow alone takes seconds to import
@pytest.mark.parametrize(("code", "text", "call"), TENSORFLOW, ids=[f"{row[0]}-{i}" for i, row in enumerate(TENSORFLOW)])
def test_a_fixed_program_computes_the_same(code: str, text: str, call: str) -> None:
    after = fixed(text, code)
    tf: Any = pytest.importorskip("tensorflow")
    numpy: Any = pytest.importorskip("numpy")
    tf.config.run_functions_eagerly(True)
    try:
        results = []
        for program in (text, after):
            names: dict[str, Any] = {}
            exec(compile(program, "a.py", "exec"), names)
            results.append([numpy.asarray(value) for value in eval(call, names)])
    finally:
        tf.config.run_functions_eagerly(False)
    for old, new in zip(*results, strict=True):
        numpy.testing.assert_allclose(old, new, rtol=1e-6)


@pytest.mark.parametrize(("code", "text"), TORCH, ids=[f"{row[0]}-{i}" for i, row in enumerate(TORCH)])
def test_a_fixed_step_computes_the_same(code: str, text: str) -> None:
    torch: Any = pytest.importorskip("torch")
    results = []
    for program in (text, fixed(text, code)):
        names: dict[str, Any] = {}
        exec(compile(program.replace("import torch_xla\n", ""), "a.py", "exec"), names)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0), torch.nn.Linear(1, 1), torch.nn.Flatten(0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = [torch.tensor([[1.0, 0.2]]) for _ in range(2)]
        results.append(
            [float(value.detach().sum()) for value in names["train"](lambda x, m=model: m(x).sum(), rows, optimizer)]
        )
    assert results[0] == pytest.approx(results[1])


@pytest.mark.parametrize(
    ("mask", "call", "offered"),
    [
        ("x > t", "", True),
        ("tf.logical_and(x > 0.0, x < 1.0)", "", True),
        ("t > 0.0", "", False),
        ("x[:, 0] > 0.0", "", False),
        ("t > 0.0", "f(tf.ones([4, 4]), tf.ones([4, 4]))", True),
        ("t > 0.0", "f(tf.ones([4, 4]), tf.ones([4]))", False),
        ("tf.reduce_sum(x, 1) > 0.0", "f(tf.ones([4, 4]), tf.ones([4]))", False),
    ],
)
def test_a_mask_that_may_pick_rows_becomes_no_weight(mask: str, call: str, offered: bool) -> None:
    text = JIT + f"def f(x, t):\n    m = {mask}\n    return tf.reduce_sum(x[m])\n\n{call}\n"
    found = [one for one in check(text, target="tpu") if one.code == "XLA201"]
    assert [one.fix is not None for one in found] == [offered]
