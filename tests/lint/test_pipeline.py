"""Which layers work on the host, and what is a strategy: by what they are and what is done with them, not by a name."""

from __future__ import annotations

import pytest

from hwal.lint import check
from hwal.lint.engine import Settings, check_sources
from hwal.lint.source import read

LAYER = """
import keras
import tensorflow as tf
{imports}

class {name}({base}):
    def call(self, x):
        if tf.reduce_max(x) > 0:
            return x
        return -x

{use}
"""


@pytest.mark.parametrize("name", ["TokenizedAttention", "MaskGenerator", "FeatureAugmentedBlock", "BackboneTest", "Converter"])
def test_a_layer_is_traced_whatever_its_name(name: str) -> None:
    text = LAYER.format(imports="", name=name, base="keras.layers.Layer", use="")
    assert [found.code for found in check(text)] == ["XLA001"]


@pytest.mark.parametrize(
    ("base", "use", "told"),
    [
        ("keras_hub.layers.PreprocessingLayer", "", False),
        ("keras_hub.tokenizers.BytePairTokenizer", "", False),
        ("keras.layers.Layer", "data = data.map(Crop())", False),
        ("keras.layers.Layer", "crop = Crop()\ndata = data.map(crop)", False),
        ("keras.layers.Layer", "crop = Crop()\ndata = data.map(lambda x, y: (crop(x), y))", False),
        ("keras.layers.Layer", "crop = Crop()\n\ndef one(x, y):\n    return crop(x), y\n\ndata = data.map(one)", False),
        ("keras.layers.Layer", "def load(data):\n    crop = Crop()\n    return data.map(lambda x: crop(x))", False),
        ("keras.layers.Layer", "crop = Crop()\ndata = data.map(crop)\nmodel = keras.Sequential([crop])", True),
        ("keras.layers.Layer", "data = data.map(Crop())\nmodel = keras.Sequential([Crop()])", True),
        ("keras.layers.Layer", "crop = Crop()\nfound = [crop(x) for x in data]", True),
    ],
)
def test_a_layer_that_datasets_alone_are_given_works_on_the_host(base: str, use: str, told: bool) -> None:
    imports = "import keras_hub" if "keras_hub" in base else ""
    text = LAYER.format(imports=imports, name="Crop", base=base, use=use)
    assert [found.code for found in check(text)] == (["XLA001"] if told else [])


@pytest.mark.parametrize(
    ("data", "model", "told"),
    [
        ("from aug import Crop\ncrop = Crop()\ndata = data.map(crop)", "", False),
        ("from aug import Crop\ncrop = Crop()\ndata = data.map(crop)", "from aug import Crop\nSequential([Crop()])", True),
        ("from aug import Crop\ncrop = Crop()\ndata = data.map(crop)", "from data import crop\nSequential([crop])", True),
        ("from aug import Crop\ncrop = Crop()", "from data import crop\nd = d.map(crop)", False),
    ],
)
def test_a_layer_that_some_file_gives_to_a_model_is_traced(data: str, model: str, told: bool) -> None:
    head = "import tensorflow as tf\nfrom keras import Sequential\n"
    files = {"aug": LAYER.format(imports="", name="Crop", base="keras.layers.Layer", use=""), "data": data, "model": model}
    sources = [read(f"{name}.py", text if name == "aug" else head + text + "\n", name) for name, text in files.items()]
    assert [found.code for found in check_sources(sources, Settings())] == (["XLA001"] if told else [])


RUN = """
import tensorflow as tf
{imports}

def step(x):
    print(open("a_host_alone_does_this"))
    return tf.linalg.det(x)

def make():
    return tf.distribute.MirroredStrategy()

def chosen():
    found = make()
    return found

def other():
    return other().pool

def main(data, runner, strategy, my_strategy):
    {lines}
"""


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("strategy.run(step, args=(data,))", True),
        ("my_strategy.run(step, args=(data,))", True),
        ("self.strategy.run(step, args=(data,))", True),
        ("tf.distribute.get_strategy().run(step)", True),
        ("s = tf.distribute.MirroredStrategy()\n    s.run(step)", True),
        ("with runner.scope():\n        runner.run(step)", True),
        ("with hwal.start() as rt:\n        rt.run(step)", True),
        ("make().run(step, args=(data,))", True),
        ("mirrored = make()\n    mirrored.run(step, args=(data,))", True),
        ("chosen().run(step)", True),
        ("other().run(step)", False),
        ("runner.run(step, args=(data,))", True),
        ("runner.run(step)", False),
        ("self.pool.run(step)", False),
        ("data.strategy_name.run(step)", False),
    ],
)
def test_run_traces_where_its_owner_is_a_strategy(lines: str, told: bool) -> None:
    text = RUN.format(imports="import hwal" if "hwal" in lines else "", lines=lines)
    assert ("XLA101" in {found.code for found in check(text)}) is told
