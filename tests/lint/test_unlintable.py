"""Files that cannot be linted: each is a line of its own, none counts as clean, and the others are linted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.lint.command import BAD, Lint, found

DEEP = "tensorflow\nx = " + "(" * 300 + ")" * 300
MALFORMED: dict[str, bytes] = {
    "syntax": b"import tensorflow\ndef f(:\n",
    "indent": b"import tensorflow\n  x = 1\n",
    "tabs": b"import tensorflow\nif 1:\n\tx = 1\n        y = 1\n",
    "unclosed": b'import tensorflow\nx = """\n',
    "null": b"import tensorflow\nx = 1\0\n",
    "no-framework": b"def f(:",
    "no-framework-null": b"x = 1\0",
    "chain": b"import keras\nx = a" + b".f()" * 3000 + b"\n",
    "elifs": b"import keras\nif x == 0: pass\n" + b"elif x == 1: pass\n" * 3000,
    "latin-1": b"import tensorflow\nx = '\xe9'\n",
    "coding": b"# -*- coding: klingon -*-\nimport tensorflow\n",
    "wrong-coding": b"# -*- coding: ascii -*-\nimport tensorflow\nx = '\xc3\xa9'\n",
    "utf-16": "import tensorflow\n".encode("utf-16"),
    "binary": bytes(range(256)) * 4 + b"tensorflow",
    "python-2": b"import tensorflow\nprint 'x'\n",
    "deep": DEEP.encode(),
    "deep-calls": b"import tensorflow as tf\nx = " + b"f(" * 3000 + b")" * 3000 + b"\n",
    "sum": b"import tensorflow as tf\n@tf.function\ndef f(x):\n    return " + b"x + " * 20000 + b"x\n",
    "merge": b"import tensorflow\n<<<<<<< HEAD\nx = 1\n=======\n>>>>>>>\n",
    "await": b"import tensorflow\nreturn 1\nx = = 1\n",
    "huge": b"import tensorflow\n" + b"#" * 4_000_001,
    "surrogate": b"import tensorflow\nx = '\xed\xa0\x80'\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_file_that_cannot_be_linted_is_a_line_and_the_others_are_linted(lint: Lint, tmp_path: Path, name: str) -> None:
    (tmp_path / "broken.py").write_bytes(MALFORMED[name])
    (tmp_path / "whole.py").write_text(BAD)
    code, out, _ = lint("--format", "json", ".")
    document = json.loads(out)
    assert code == 2, "what was not looked at is neither clean nor faulty"
    assert [error["path"] for error in document["errors"]] == ["broken.py"]
    assert {one["path"] for one in document["findings"]} == {"whole.py"}
    (tmp_path / "whole.py").unlink()
    for form in (["--format", "text"], ["--format", "github"], ["--statistics"], ["--checklist"]):
        code, out, _ = lint(*form, ".")
        assert code == 2 and "broken.py" in out, form
    code, out, err = lint("--diff", ".")
    assert (code, out) == (2, "\n") and "broken.py" in err
    code, _, err = lint("--write-baseline", "old.json", ".")
    assert code == 2 and "broken.py" in err and "0 findings written" in err
    assert "\n" not in document["errors"][0]["message"]


def test_what_is_said_of_a_file_that_is_no_python(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 2\0\n")
    (tmp_path / "b.py").write_text("x = 1\n\ndef f(:\n")
    (tmp_path / "deep.py").write_text("import keras\nx = " + "a + " * 4000 + "a\n")
    (tmp_path / "deep_data.py").write_text("x = " + "1 + " * 4000 + "1\n")
    out = lint(".")[1].split("\n\n")
    assert out[0] == "a.py:2: not Python: a null byte" and out[1] == "b.py:3: not Python: invalid syntax"
    assert out[2].startswith("deep.py: nested too deep for the linter") and "not Python" not in out[2]
    assert out[3] == "nothing found in 1 file; 3 files could not be linted\n", "data that mention no framework have no finding"
    errors = json.loads(lint("--format", "json", ".")[1])["errors"]
    assert errors[1] == {"path": "b.py", "message": "not Python: invalid syntax", "line": 3} and "line" not in errors[2]


def test_a_notebooks_errors_count_as_its_findings(lint: Lint, tmp_path: Path) -> None:
    for last in ("x = = 1\n", "x = '\ud800'\n"):
        cells = [{"cell_type": "code", "source": text} for text in ("import keras\n", "y = 1\nz = 2\n", last)]
        (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
        assert lint("n.ipynb")[1].startswith("n.ipynb:cell 3:1: not Python: ")
        (error,) = json.loads(lint("--format", "json", "n.ipynb")[1])["errors"]
        assert (error["cell"], error["line"]) == (3, 1)
        assert lint("--format", "github", "n.ipynb")[1].startswith("::error file=n.ipynb::cell 3, line 1: not Python: ")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files that are no text")
def test_a_name_that_is_no_text(lint: Lint, tmp_path: Path) -> None:
    for name, text in (("a\udcffb.py", BAD), ("c\udcff.py", "def f(:")):
        (tmp_path / name).write_text(text)
    for _ in range(2):  # the second is the kept result
        for form in ("text", "github"):
            code, out, _ = lint("--format", form, ".")
            assert code == 2 and "a\\udcffb.py" in out and "c\\udcff.py" in out
        document = json.loads(lint("--format", "json", ".")[1])
        assert {one["path"] for one in document["findings"]} == {"a\udcffb.py"}
        run = json.loads(lint("--format", "sarif", ".")[1])["runs"][0]
        assert {one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in run["results"]} == {"a%FFb.py"}
    assert "a\\udcffb.py" in lint("--diff", "--unsafe-fixes", ".")[1]
    assert lint("--fix", "--unsafe-fixes", "--select", "XLA102", "a\udcffb.py")[0] == 0
    assert lint("--write-baseline", "old.json", "a\udcffb.py")[0] == 0 and lint("--baseline", "old.json", "a\udcffb.py")[0] == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": 1}', '{"cells": [1, {"cell_type": "code", "source": 3}]}'])
def test_a_notebook_that_is_none(lint: Lint, tmp_path: Path, text: str) -> None:
    (tmp_path / "n.ipynb").write_text(text)
    (tmp_path / "whole.py").write_text(BAD)
    code, out, _ = lint("--format", "json", ".")
    errors = json.loads(out)["errors"]
    assert code == (2 if errors else 1) and len(found(out)) == 2
    assert all(error["path"] == "n.ipynb" for error in errors)


@pytest.mark.skipif(sys.platform == "win32", reason="symlinks")
def test_links_that_lead_round_or_nowhere(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.py").write_text(BAD)
    (tmp_path / "p" / "round").symlink_to(tmp_path / "p", target_is_directory=True)
    (tmp_path / "p" / "gone.py").symlink_to(tmp_path / "nothing.py")
    os.mkfifo(tmp_path / "p" / "pipe.py")
    code, out, _ = lint("--format", "json", "p")
    assert code == 2 and len(found(out)) == 2
    assert {error["path"] for error in json.loads(out)["errors"]} == {"p/gone.py", "p/pipe.py"}
