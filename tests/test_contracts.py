"""The import contracts of pyproject.toml hold, and each of them notices the import it forbids."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
CONTRACTS = {contract["id"]: contract["name"] for contract in CONFIG["contracts"]}

# contract, file, what is added to it: at the end, so that `def` hides an import from a look at the top of the file
PLANTED = [
    ("no-framework", "hwal/choose.py", "import torch\n"),
    ("no-framework", "hwal/detect.py", "def f():\n    import torch.nn\n"),
    ("no-framework", "hwal/cli/__init__.py", "def f():\n    from tensorflow import keras\n"),
    ("no-framework", "hwal/launch/engines.py", "def f():\n    import numpy as np\n"),
    ("no-framework", "hwal/registry.py", "def f():\n    import hwal_cpu\n"),
    ("no-framework", "hwal/testing/probes.py", "from hwal_torch import feed\n"),
    ("lean-probes", "backends/hwal_cpu/probe.py", "def f():\n    import torch\n"),
    ("lean-probes", "backends/hwal_cpu/chip.py", "import numpy\n"),
    ("lean-probes", "backends/hwal_null/__init__.py", "def f():\n    from hwal_torch import feed\n"),
    ("lean-probes", "backends/hwal_null/probe.py", "from hwal_null import torch_runtime\n"),
    ("lean-probes", "backends/hwal_tpu/launch.py", "def f():\n    import torch_xla\n"),
    ("probes-ask-the-host", "backends/hwal_cpu/probe.py", "import os\n"),
    ("probes-ask-the-host", "backends/hwal_tpu/access.py", "import os\n"),
    ("probes-ask-the-host", "backends/hwal_null/probe.py", "def f():\n    import subprocess\n"),
    ("independent-backends", "backends/hwal_cpu/torch_runtime.py", "import hwal_null\n"),
    ("independent-backends", "backends/hwal_null/probe.py", "from hwal_cpu import probe as other\n"),
    ("shared-knows-no-backend", "backends/hwal_torch/feed.py", "def f():\n    import hwal_cpu.probe\n"),
    ("pure", "hwal/choose.py", "import os\n"),
    ("pure", "hwal/plan/make.py", "def f():\n    from subprocess import run\n"),
    ("pure", "hwal/plan/precision.py", "from pathlib import Path\n"),
    ("pure", "hwal/order/ring.py", "import os\n"),
    ("pure", "hwal/lint/engine.py", "import os\n"),
    ("pure", "hwal/lint/rules/xla001_tensor_bool_without_autograph.py", "from pathlib import Path\n"),
    ("no-framework", "hwal/lint/names.py", "def f():\n    import tensorflow\n"),
    ("pure-launch", "hwal/launch/build.py", "import os.path\n"),
    ("pure-launch", "hwal/launch/world.py", "def f():\n    import socket\n"),
    ("layers", "hwal/values.py", "from hwal import choose\n"),
    ("layers", "hwal/errors.py", "def f():\n    from hwal.record import Record\n"),
    ("layers", "hwal/launch/engines.py", "def f():\n    from hwal.cli import main\n"),
    ("layers", "hwal/choose.py", "from hwal.detect import detect\n"),
    ("layers", "hwal/nobody_placed_me.py", "x = 1\n"),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the contracts look at."""
    root = tmp_path_factory.mktemp("tree")
    for folder in ("hwal", "backends"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def broken(tree: Path) -> set[str]:
    """Ids of the contracts that do not hold in a tree."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "backends")]), "COLUMNS": "200"}
    lint = "import sys; from importlinter.cli import lint_imports_command as lint; lint(['--no-cache'])"
    done = subprocess.run([sys.executable, "-c", lint], cwd=tree, env=environ, capture_output=True, text=True, check=False)
    verdicts = dict(re.findall(r"^(.+?) (KEPT|BROKEN)(?: \(.*\))?$", done.stdout, re.MULTILINE))
    assert set(verdicts) == set(CONTRACTS.values()), done.stdout + done.stderr
    names = {name for name, verdict in verdicts.items() if verdict == "BROKEN"}
    assert (done.returncode == 0) == (not names)
    return {key for key, name in CONTRACTS.items() if name in names}


def test_every_contract_holds(tree: Path) -> None:
    assert broken(tree) == set()


@pytest.mark.parametrize(("contract", "file", "line"), PLANTED, ids=lambda value: str(value).strip().replace("\n", " "))
def test_a_planted_import_breaks_its_contract(tree: Path, contract: str, file: str, line: str) -> None:
    path = tree / file
    before = path.read_text(encoding="utf-8") if path.exists() else None
    try:
        path.write_text((before or "") + "\n\n" + line, encoding="utf-8")
        assert contract in broken(tree)
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_text(before, encoding="utf-8")


RUNTIME = re.compile(r"^import (torch|tensorflow as tf)$|^from (hwal_keras|jax)", re.M)  # in a runtime, or a part of one


def test_every_contract_has_a_planted_import() -> None:
    assert {contract for contract, _, _ in PLANTED} == set(CONTRACTS)


def test_every_backend_stands_in_the_contracts() -> None:
    """A new folder under backends/ must be a root package, and its probe must be among those that are kept lean."""
    folders = {path.name for path in (ROOT / "backends").iterdir() if (path / "__init__.py").exists()}
    assert folders <= set(CONFIG["root_packages"])
    by_id = {contract["id"]: contract for contract in CONFIG["contracts"]}
    backends = {name for name in folders if (ROOT / "backends" / name / "probe.py").exists()}
    assert backends == set(by_id["independent-backends"]["modules"])
    lean = {*backends, "hwal_gpu"}  # which backends' declarations import
    for key in ("lean-probes", "probes-ask-the-host"):
        files = {
            name if path.stem == "__init__" else f"{name}.{path.stem}"
            for name in lean
            for path in (ROOT / "backends" / name).glob("*.py")
            if path.stem != "torch_runtime" and not RUNTIME.search(path.read_text(encoding="utf-8"))
        }
        files |= {
            f"{name}.{path.parent.name}.**" for name in backends for path in (ROOT / "backends" / name).glob("*/__init__.py")
        }
        assert files == set(by_id[key]["source_modules"])
