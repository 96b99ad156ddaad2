"""The analyses that rules ask: names, contexts, the call graph, values, arguments, families, training steps, edits."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hwal.lint import edits
from hwal.lint.context import Context, Contexts
from hwal.lint.diagnostic import Edit, Fix
from hwal.lint.discover import Text, module_name
from hwal.lint.engine import Settings, check_sources
from hwal.lint.events import Trace
from hwal.lint.families import family, missing
from hwal.lint.interpreter import Interpreter
from hwal.lint.names import Names, canonical
from hwal.lint.project import Project
from hwal.lint.run import Named, components
from hwal.lint.source import Function, Source, mentions, read
from hwal.lint.steps import Steps
from hwal.lint.values import PYTHON, RAGGED, TENSOR, Value, depends, join, tensor_like

TF = "import keras\nimport tensorflow as tf\n\n"


def names(text: str) -> Names:
    found = Names()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.add(node, "pkg.sub")
    return found


def resolved(imports: str, expression: str) -> str | None:
    return names(imports).resolve(ast.parse(expression, mode="eval").body)


@pytest.mark.parametrize(
    ("imports", "expression", "meaning"),
    [
        ("import tensorflow as tf", "tf.math.reduce_sum", "tensorflow.reduce_sum"),
        ("import tensorflow", "tensorflow.compat.v1.matrix_determinant", "tensorflow.linalg.det"),
        ("from tensorflow import where as w", "w", "tensorflow.where"),
        ("from tensorflow.math import top_k", "top_k", "tensorflow.nn.top_k"),
        ("import tensorflow.compat.v1 as tf", "tf.reduce_sum", "tensorflow.reduce_sum"),
        ("import tensorflow as tf", "tf.keras.layers.Layer", "keras.layers.Layer"),
        ("from tensorflow.keras import layers as L", "L.Dense", "keras.layers.Dense"),
        ("import tf_keras", "tf_keras.Model", "keras.Model"),
        ("import numpy as np", "np.random.rand", "numpy.random.rand"),
        ("from . import model", "model.loss", "pkg.sub.model.loss"),
        ("from ..other import f", "f", "pkg.other.f"),
        ("import os.path", "os.path.join", "os.path.join"),
        ("from keras import ops", "ops.linalg.det", "keras.ops.det"),
        ("from keras import ops", "ops.image.resize", "keras.ops.image.resize"),
        ("import tensorflow as tf", "x.reduce_sum", None),
        ("import tensorflow as tf", "f().x", None),
    ],
)
def test_names(imports: str, expression: str, meaning: str | None) -> None:
    assert resolved(imports, expression) == meaning


def test_what_only_compat_v1_has_keeps_its_name() -> None:
    assert canonical("tensorflow.compat.v1.placeholder") == "tensorflow.compat.v1.placeholder"


def test_a_name_at_a_files_top_may_stand_for_a_module() -> None:
    found = read("a.py", "import tensorflow as tf\n\nlinalg = tf.linalg\nlinalg.det(linalg)\n").names
    assert found.resolve(ast.parse("linalg.det", mode="eval").body) == "tensorflow.linalg.det"


def roots(text: str, autograph_in_keras: bool = False) -> dict[str, Context]:
    project = Project([read("a.py", text, "a")])
    return {function.name: context for function, context in Contexts(project, autograph_in_keras).roots.items()}


def test_who_is_traced() -> None:
    text = TF + (
        "@tf.function(autograph=False)\ndef a(x): return x\n\n"
        "@tf.function(jit_compile=False)\ndef b(x): return x\n\n"
        "def c(x): return x\n\nd = tf.function(c)\n\n"
        "def loss(y, p): return y - p\n\ndef metric(y, p): return y\n\n"
        "keras.Sequential().compile(loss=loss, metrics=[metric])\n\n"
        "class L(keras.layers.Layer):\n    def call(self, x): return x\n    def build(self, s): pass\n\n"
        "class M(L):\n    def call(self, x): return x\n\n"
        "class Plain:\n    def call(self, x): return x\n"
    )
    found = roots(text)
    assert set(found) == {"a", "b", "c", "loss", "metric", "call"}
    assert not found["a"].autograph and found["b"].autograph and not found["b"].compiled
    assert found["loss"].gradient and found["loss"].keras and not found["loss"].autograph
    assert not found["metric"].gradient
    assert not found["call"].autograph and roots(text, autograph_in_keras=True)["call"].autograph


def test_what_nobody_calls_is_assumed_to_be_compiled_and_a_pipeline_is_not() -> None:
    body = "    return tf.reduce_sum(x)\n\n"
    text = TF + f"def f(x):\n{body}def load_it(x):\n{body}def g(x):\n{body}data = tf.data.Dataset.range(3).map(g)\n"
    found = roots(text)
    assert set(found) == {"f"} and found["f"].assumed
    assert roots(TF + f"def f(x):\n{body}print(f(tf.ones([2])))\n") == {}, "eager code calls it"


def traces(text: str, **others: str) -> dict[str, list[Trace]]:
    project = Project([read("a.py", text, "a"), *(read(f"{name}.py", other, name) for name, other in others.items())])
    found: dict[str, list[Trace]] = {}
    for trace in Interpreter(project, Contexts(project)).run():
        found.setdefault(trace.function.name, []).append(trace)
    return found


def test_calls_are_followed_across_files_with_autograph_as_it_is_there() -> None:
    helper = TF + "def helper(v, n):\n    if tf.reduce_sum(v) > n:\n        return v\n    return -v\n"
    text = TF + "from h import helper\n\nclass L(keras.layers.Layer):\n    def call(self, x):\n        return helper(x, 3)\n"
    found = traces(text, h=helper)
    (trace,) = found["helper"]
    assert trace.parameters["v"].kind == TENSOR and trace.parameters["n"].const == 3 and not trace.autograph
    (test,) = trace.tensor_tests("if")
    assert test.value.data
    codes = [d.code for d in check_sources([read("a.py", text, "a"), read("h.py", helper, "h")], Settings())]
    assert codes == ["XLA001"]


def returned(body: str, arguments: str = "x, n") -> Value:
    text = TF + f"@tf.function\ndef f({arguments}):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    (trace,) = traces(text)["f"]
    return trace.returns[-1][1]


@pytest.mark.parametrize(
    ("body", "kind", "data"),
    [
        ("return x.shape[0] * 2", PYTHON, False),
        ("return tf.shape(x)[0] * 2", TENSOR, False),
        ("return tf.reduce_max(x)", TENSOR, True),
        ("return tf.zeros([3])", TENSOR, False),
        ("i = 0\nwhile i < n:\n    i += 1\nreturn i", TENSOR, True),
        ("i = 0\nfor _ in range(3):\n    i += 1\nreturn i", PYTHON, False),
        ("y = 1\nif n > 2:\n    y = 2\nreturn y", TENSOR, True),
        ("return len(x)", PYTHON, False),
        ("return x is None", PYTHON, False),
        ("return tf.RaggedTensor.from_row_lengths(x, n)", RAGGED, True),
        ("a, b = tf.split(x, 2)\nreturn a", TENSOR, True),
        ("return [x, 3][1]", PYTHON, False),
        ("return (lambda v: v + 1.0)(x)", TENSOR, True),
    ],
)
def test_values(body: str, kind: str, data: bool) -> None:
    value = returned(body)
    assert (value.kind, value.data) == (kind, data)


def test_a_shape_is_known_where_its_tensors_length_is_not() -> None:
    assert returned("return tf.boolean_mask(x, x > 0.0)").bounded
    assert not depends(returned("return tf.size(tf.boolean_mask(x, x > 0.0))"))
    assert not returned("return tf.reduce_sum(tf.boolean_mask(x, x > 0.0))").bounded


def test_join_keeps_what_both_are() -> None:
    a, b = Value(TENSOR, dtype="int32"), Value(TENSOR, data=True, dtype="int32")
    assert join(a, b) == b and join(a, Value(PYTHON)).kind == "unknown"
    assert tensor_like([Value(PYTHON, items=(b,))]).data


@pytest.mark.parametrize(
    ("arguments", "body", "kind"),
    [
        ("x", "return x", TENSOR),
        ("training", "return training", PYTHON),
        ("x: int", "return x", PYTHON),
        ("x=2", "return x", PYTHON),
        ("x=None", "return x", "unknown"),
        ("x: tf.RaggedTensor", "return x", RAGGED),
        ("f", "f()\nreturn f", PYTHON),
        ("x", "isinstance(x, list)\nreturn x", PYTHON),
        ("x", "x == 'sum'\nreturn x", PYTHON),
        ("x", "d = getattr(x, 'dtype', type(x))\nreturn x", PYTHON),
        ("x", "d = {getattr(a, 'dtype', None) for a in x}\nreturn x", PYTHON),
    ],
)
def test_arguments(arguments: str, body: str, kind: str) -> None:
    assert returned(body, arguments).kind == kind


def test_an_input_signature_says_dtypes_and_shapes() -> None:
    text = TF + "@tf.function(input_signature=[tf.TensorSpec([None, 4], tf.int32)])\ndef f(training):\n    return training\n"
    value = traces(text)["f"][0].returns[0][1]
    assert (value.kind, value.shape, value.dtype) == (TENSOR, (None, 4), "int32")


def test_a_number_that_some_call_passes_is_python() -> None:
    text = TF + "@tf.function\ndef f(x, n):\n    return n\n\nf(tf.ones([2]), 3)\n"
    assert traces(text)["f"][0].returns[0][1].kind == PYTHON


@pytest.mark.parametrize(
    ("call", "shape", "dtype"),
    [
        ("f(tf.constant([[1, 2]]))", (1, 2), "int32"),
        ("f(tf.ones([2, 3], tf.float16))", (2, 3), "float16"),
        ("f(x=np.random.rand(4, 2).astype('float32'))", (4, 2), "float32"),
        ("f(tf.random.normal(shape=(8,)))", (8,), "float32"),
        ("f(DATA)", (3,), "bool"),
        ("f(tf.cast(tf.zeros([2]), tf.int64))", (2,), "int64"),
        ("tf.function(f)\ng = tf.function(f)\ng(tf.ones([5]))", (5,), "float32"),
        ("f(tf.ones([2]))\nf(tf.ones([3]))", None, "float32"),
    ],
)
def test_calls_in_sight_say_what_a_root_is_given(call: str, shape: tuple[int, ...] | None, dtype: str) -> None:
    text = TF + "import numpy as np\n\nDATA = tf.constant([True, False, True])\n\n@tf.function\ndef f(x):\n    return x\n\n"
    value = traces(text + call + "\n")["f"][0].returns[0][1]
    assert (value.kind, value.shape, value.dtype) == (TENSOR, shape, dtype)


def test_a_flag_of_init_is_pythons() -> None:
    text = TF + (
        "class M(tf.Module):\n    def __init__(self, a, b: bool, c=1.0, d=None):\n"
        "        self.a = a\n        self.b = b\n        self.c = c\n        self.d = d\n\n"
        "    @tf.function\n    def __call__(self, x):\n        return {}\n\nM(True, False)\n"
    )

    def kind(expression: str) -> tuple[str, str | None]:
        value = traces(text.format(expression))["__call__"][0].returns[0][1]
        return value.kind, value.dtype

    assert [kind(f"self.{name}") for name in "abcd"] == [
        (PYTHON, "bool"),
        (PYTHON, "bool"),
        (PYTHON, None),
        ("unknown", None),
    ]


def test_recursion_ends() -> None:
    assert traces(TF + "@tf.function\ndef f(x):\n    return f(x)\n")["f"]
    assert traces(TF + "@tf.function\ndef f(x):\n    return g(x)\n\ndef g(x):\n    return f(x - 1.0)\n")["g"]


def test_families() -> None:
    assert missing("linalg.det") == ["MatrixDeterminant"] and family("linalg.det") == "kernel"
    assert missing("raw_ops.Lu") == ["Lu"]
    for short in ("reduce_sum", "linalg.cholesky", "image.resize", "nn.conv2d", "io.gfile.exists", "sparse.to_dense"):
        assert family(short) is None, short
    assert [family(s) for s in ("print", "strings.lower", "sets.union", "io.read_file")] == [
        "host",
        "string",
        "segment",
        "host",
    ]


def steps(text: str) -> tuple[Steps, Source]:
    source = read("a.py", text, "a")
    return Steps(source, Project([source])), source


def test_steps_are_the_loops_around_backward_and_what_they_call() -> None:
    text = (
        "import torch\n\ndef loss_of(m, x):\n    return m(x)\n\n"
        "for epoch in range(3):\n    for x, y in loader:\n        loss = loss_of(model, x)\n"
        "        loss.backward()\n    print(epoch)\n"
    )
    found, source = steps(text)
    ((loop, function),) = found.loops
    assert loop.lineno == 7 and function is None
    lines = {node.lineno for node, _ in found.nodes() if isinstance(node, ast.stmt)}
    assert lines == {4, 8, 9}

    def tensor(expression: str) -> bool:
        return found.is_tensor(ast.parse(expression, mode="eval").body, None)

    assert [tensor(e) for e in ("x", "loss", "model(x)", "loss > 1", "torch.relu(x)")] == [True] * 5
    assert [tensor(e) for e in ("epoch", "x.shape[0]", "loss.item()", "len(x)", "torch.device('cpu')")] == [False] * 5
    assert source.top["loss_of"].name == "loss_of"


def test_files_go_together_when_one_imports_the_other() -> None:
    def named(name: str, text: str) -> Named:
        return Named(Text(f"{name.replace('.', '/')}.py", text), name)

    items = [
        named("p.a", "from p import b\n"),
        named("p.b", "import os\n"),
        named("p.c", "from . import d\n"),
        named("p.d", ""),
        named("e", "import f\n"),
        named("f", ""),
    ]
    groups = {frozenset(item.name for item in group) for group in components(items)}
    assert groups == {frozenset({"p.a", "p.b"}), frozenset({"p.c", "p.d"}), frozenset({"e", "f"})}


def test_a_files_name_is_its_packages(tmp_path: Path) -> None:
    (tmp_path / "p" / "q").mkdir(parents=True)
    for folder in ("p", "p/q"):
        (tmp_path / folder / "__init__.py").touch()
    assert module_name(str(tmp_path / "p" / "q" / "m.py")) == "p.q.m"
    assert module_name(str(tmp_path / "p" / "q" / "__init__.py")) == "p.q"
    assert module_name(str(tmp_path / "m.py")) == "m"


def test_a_file_that_mentions_nothing_is_not_parsed() -> None:
    assert mentions("import tensorflow as tf") and mentions("from torch import nn")
    assert not mentions("import numpy as np\nmytensorflow = 1\n")


def test_edits_that_touch_the_same_text_are_not_both_applied() -> None:
    lines = ["é = f(a, b=1)", "x"]
    source = read("a.py", "\n".join(lines))
    call = next(node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    assert edits.text(source, call) == "f(a, b=1)"
    removed = edits.remove_keyword(source, call, "b")
    assert removed is not None and edits.apply(lines, [removed])[0] == "é = f(a)"
    assert edits.apply(lines, [edits.add_keyword(source, call, "c=2")])[0] == "é = f(a, b=1, c=2)"
    one = Fix("safe", "", (Edit(1, 0, 1, 1, "y"),))
    other = Fix("safe", "", (Edit(1, 0, 1, 3, "z"),))
    assert edits.apply_fixes(lines, [one, other]) == (["y = f(a, b=1)", "x"], [one])


def test_a_lambda_and_an_inner_function_are_functions() -> None:
    source = read("a.py", "def f(x):\n    def g(y): return y\n    return lambda z: g(z)\n")
    assert [function.name for function in source.functions] == ["f", "g", "<lambda>"]
    f: Function = source.top["f"]
    assert set(f.inner) == {"g"} and source.functions[2].outer is f


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("return tf.square(x) + 1.0", (4, 3)),
        ("return tf.reduce_sum(x)", ()),
        ("return tf.reduce_mean(x, axis=-1)", (4,)),
        ("return tf.reduce_max(x, [0, 1], keepdims=True)", (1, 1)),
        ("return x / tf.reduce_sum(x, 1, keepdims=True)", (4, 3)),
        ("return tf.norm(x) > 1.0", ()),
        ("return tf.matmul(x, tf.ones([3, 2]))", (4, 2)),
        ("return tf.reshape(x, [2, -1])", (2, None)),
        ("return tf.boolean_mask(x, tf.constant([True, False, True, True]))", (None, 3)),
        ("return tf.constant([[1, 2, 3]])", (1, 3)),
        ("return tf.maximum(x, tf.zeros([2, 1, 3]))", (2, 4, 3)),
        ("return tf.reduce_sum(x, axis=n)", None),
        ("return tf.einsum('ij->ji', x)", None),
    ],
)
def test_shapes(body: str, shape: tuple[int | None, ...] | None) -> None:
    text = TF + f"@tf.function\ndef f(x, n):\n    {body}\n\nf(tf.ones([4, 3]), tf.constant(1))\n"
    assert traces(text)["f"][0].returns[0][1].shape == shape
