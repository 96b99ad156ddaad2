"""What of TensorFlow's import comes to the terminal: a package that writes as its C++ does stands for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hwal_keras import quiet

pytestmark = pytest.mark.slow  # starts processes
NOTES = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n"
    "I0000 00:00:1796010211.839404   22538 port.cc:153] oneDNN custom operations are on.\\n"
)
WRITES = f"""
import os
os.write(2, b"{NOTES}")
os.write(2, b"E0000 00:00:1796010211.8 22538 cuda_dnn.cc:8579] Unable to register cuDNN factory\\n")
NAME = __spec__.name
"""


def imported(folder: Path, level: str, more: str = "") -> tuple[int, list[str]]:
    (folder / "tensorflow").mkdir(exist_ok=True)
    (folder / "tensorflow" / "__init__.py").write_text(WRITES + more)
    program = """
import os, sys
from hwal_keras import quiet
quiet.install()
import tensorflow
os.write(2, b"I0000 00:00:1.5 1 later.cc:1] and after it all comes\\n")
assert tensorflow.NAME == "tensorflow" and not any(isinstance(one, quiet.Quiet) for one in sys.meta_path)
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "TF_CPP_MIN_LOG_LEVEL": level}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    return done.returncode, [line.split("]")[-1].strip() for line in done.stderr.splitlines()]


def test_notes_are_left_out_and_errors_are_not(tmp_path: Path) -> None:
    assert imported(tmp_path, "2") == (0, ["Unable to register cuDNN factory", "and after it all comes"])
    code, said = imported(tmp_path, "0")
    assert code == 0 and "oneDNN custom operations are on." in said


def test_where_no_gpu_is_wanted_none_is_missed(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet.errors_only(quiet.NO_GPU):
        os.write(2, b"E0000 00:00:1796028665.1 25830 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error\n")
        os.write(2, b"E0000 00:00:1796028665.1 25830 other.cc:1] another error\n")
    assert [line.split("]")[-1].strip() for line in capfd.readouterr().err.splitlines()] == ["another error"]


def test_a_process_that_holds_the_pipe_is_not_waited_for() -> None:
    begun = time.monotonic()
    with quiet.errors_only():
        child = subprocess.Popen(["sleep", "30"])
    assert time.monotonic() - begun < 15
    child.kill()
    child.wait()


def test_the_last_words_of_a_process_that_dies_of_it_come_through(tmp_path: Path) -> None:
    dies = 'os.write(2, b"F0000 00:00:1.5 1 cpu_feature_guard.cc:1] compiled to use AVX512, which is not here\\n"); os.abort()'
    code, said = imported(tmp_path, "2", dies)
    assert code < 0 and "compiled to use AVX512, which is not here" in said
