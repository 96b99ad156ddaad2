"""Looks at what was built: the wheel's files, and that a wheel made from the sdist is the same.

python ci/wheel.py DIST
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGES = {"hwal", "hwal_cpu", "hwal_cuda", "hwal_gpu", "hwal_keras", "hwal_null", "hwal_rocm", "hwal_torch", "hwal_tpu"}
MUST = {
    "hwal/py.typed",
    "hwal/testing/__init__.py",
    "hwal_cpu/probe.py",
    "hwal_cpu/torch_runtime.py",
    "hwal_cuda/probe.py",
    "hwal_keras/recipe.py",
    "hwal/lint/tables/kernels.py",
    "hwal_null/probe.py",
    "hwal_rocm/probe.py",
    "hwal_torch/recipe.py",
    "hwal_torch/testing.py",
    "hwal_tpu/probe.py",
}


def contents(wheel: Path) -> dict[str, int]:
    """File -> checksum."""
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}


def complaints(wheel: Path, sdist: Path) -> list[str]:
    files = contents(wheel)
    packages = {name.split("/")[0] for name in files}
    texts = [f"the wheel lacks {name}" for name in sorted(MUST - set(files))]
    extra = {name for name in packages - PACKAGES if not name.endswith(".dist-info")}
    texts += [f"the wheel has {name}, which is no package of hwal's" for name in sorted(extra)]
    texts += [f"the wheel has {name}" for name in files if "__pycache__" in name]
    if not any(name.endswith(".dist-info/entry_points.txt") for name in files):
        texts.append("the wheel has no entry points, so no `hwal` command")
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        source = next(Path(scratch).iterdir())
        command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", scratch, str(source)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        again = contents(next(Path(scratch).glob("*.whl")))
    differing = {name for name, _ in files.items() ^ again.items()}
    texts += [f"{name} differs between the wheel and one made from the sdist" for name in sorted(differing)]
    return texts


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    wheel, sdist = next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))
    found = complaints(wheel, sdist)
    for text in found:
        print(text, file=sys.stderr)
    if not found:
        print(f"{wheel.name}: {len(contents(wheel))} files, the same from the sdist")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
