from __future__ import annotations

from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from hwal.errors import UsageError
from hwal.launch.framework import framework_of, read_source


@pytest.mark.parametrize(
    ("source", "framework", "package"),
    [
        ("import torch", "torch", "torch"),
        ("import torch.nn as nn, os", "torch", "torch"),
        ("from torch import nn", "torch", "torch"),
        ("def f():\n    if True:\n        from torch.utils import data", "torch", "torch"),
        ("import keras", "keras", "keras"),
        ("from tensorflow.keras import layers", "keras", "tensorflow"),
        ("import tf_keras", "keras", "tf_keras"),
        ("import tensorflow as tf\nimport keras", "keras", "tensorflow"),
        ("from transformers import Trainer", "torch", "transformers"),
        ("import lightning", "torch", "lightning"),
        ("from accelerate import Accelerator", "torch", "accelerate"),
        ("import keras\nfrom transformers import AutoTokenizer", "keras", "keras"),
    ],
)
def test_import_statements_decide(source: str, framework: str, package: str) -> None:
    decision = framework_of(source, "train.py", None)
    assert (decision.value, decision.why) == (framework, f"train.py imports {package}")


@pytest.mark.parametrize("source", ["import os", "from .torch import x", "torch = 1", "'import keras'", "# import keras", ""])
def test_without_a_framework_it_is_torch_and_says_so(source: str) -> None:
    decision = framework_of(source, "train.py", None)
    assert decision.value == "torch" and "default" in decision.why


def test_both_need_a_flag() -> None:
    source = "import torch\nimport keras"
    with pytest.raises(UsageError, match="both torch and keras"):
        framework_of(source, "train.py", None)
    assert framework_of(source, "train.py", "keras").value == "keras"


def test_the_recipe_is_torch_and_unknown_names_are_refused() -> None:
    assert framework_of(None, None, None).value == "torch"
    with pytest.raises(UsageError) as caught:
        framework_of(None, None, "tensorflow2")
    assert caught.value.hint == "--framework keras"


def test_a_syntax_error_is_named_with_its_line() -> None:
    with pytest.raises(UsageError) as caught:
        framework_of("import torch\nfor x in\n", "train.py", None)
    assert caught.value.where == "train.py:2"
    with pytest.raises(UsageError, match="not valid Python"):
        framework_of("import torch\0", "train.py", None)


def test_a_missing_script_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "train_lm.py").write_text("")
    with pytest.raises(UsageError) as caught:
        read_source(str(tmp_path / "trian_lm.py"))
    assert caught.value.hint == f"did you mean {tmp_path / 'train_lm.py'}?"
    with pytest.raises(UsageError) as caught:
        read_source(str(tmp_path / "nowhere" / "train.py"))
    assert "no folder" in str(caught.value)


def test_folders_notebooks_and_bytes_are_no_scripts(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("")
    with pytest.raises(UsageError) as caught:
        read_source(str(tmp_path))
    assert caught.value.hint == f"hwal train {tmp_path / 'main.py'}"
    (tmp_path / "a.ipynb").write_text("{}")
    with pytest.raises(UsageError, match="notebook"):
        read_source(str(tmp_path / "a.ipynb"))
    (tmp_path / "b.py").write_bytes(b"x = '\xff\xfe'")
    with pytest.raises(UsageError, match="not Python text"):
        read_source(str(tmp_path / "b.py"))
    for once in ("/dev/null", "/dev/stdin"):
        with pytest.raises(UsageError, match="is no plain file"):
            read_source(once)
    (tmp_path / "c.py").write_bytes("# -*- coding: latin-1 -*-\nx = 'é'".encode("latin-1"))
    assert "é" in read_source(str(tmp_path / "c.py"))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="Linux's shared memory")
def test_a_file_in_shared_memory_is_a_script() -> None:
    with NamedTemporaryFile("w", dir="/dev/shm", suffix=".py") as file:
        file.write("import torch")
        file.flush()
        assert read_source(file.name) == "import torch"
