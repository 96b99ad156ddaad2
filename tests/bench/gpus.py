"""`hwal devices` on machines of 8 and 16 GPUs: the whole command through the real nvidia-ml-py and the stub of NVML.

    python tests/bench/gpus.py [--rounds N]

The driver's own time is not in it: a stub answers from memory. What is measured is hwal's part: 1,050 calls for 16 GPUs, the
links of 120 pairs, and the drawing of the table. gcc builds the stub.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backends")]

from hwal.host import RECORDING  # noqa: E402
from tests.backends import gpus  # noqa: E402
from tests.doubles import nvml  # noqa: E402

# This machine, with the files of a driver and of sysfs laid over its own.
PROGRAM = """
import sys
import hwal.survey
from hwal.cli import main
from hwal.host import Host, RecordedHost

paper = RecordedHost.load(sys.argv[1])

class Overlaid(Host):
    def read(self, path):
        return paper.read(path) or super().read(path)
    def names(self, folder):
        return paper.names(folder) or super().names(folder)
    def may_open(self, path):
        return paper.may_open(path) or super().may_open(path)
    def version(self, distribution):
        return "2.13.0+cu130" if distribution == "torch" else super().version(distribution)

hwal.survey.Host = Overlaid
sys.exit(main(["devices"]))
"""
MACHINES = {
    "8 × H100, NVSwitch": gpus.switched("h100", 8, 18, 4),
    "8 × V100, cube mesh": gpus.wired("v100", gpus.rows("dgx-1v"), 2),
    "16 × H100, NVSwitch": gpus.switched("h100", 16, 18, 4),
    "16 × V100, NVSwitch": gpus.switched("v100", 16, 6, 2, fabric=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        nvml.build(scratch)
        environ = {**os.environ, "LD_LIBRARY_PATH": folder, "PYTHONPYCACHEPREFIX": str(scratch / "compiled")}
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "backends")])
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        commands = {"no GPU": ([sys.executable, "-m", "hwal", "devices"], environ)}
        for i, (name, report) in enumerate(MACHINES.items()):
            home = scratch / str(i)
            home.mkdir()
            (home / RECORDING).write_text(gpus.host(report, name).to_json(), encoding="utf-8")
            (home / "told").write_text("\n".join(nvml.lines(report)) + "\n", encoding="utf-8")
            told = {**environ, "NVML_STUB": str(home / "told")}
            commands[name] = ([sys.executable, "-c", PROGRAM, str(home)], told)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        probes: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(args.rounds + 2):
            for name, (argv, variables) in commands.items():
                begun, worked = perf_counter(), _cpu()
                done = subprocess.run(argv, env=variables, capture_output=True, text=True, check=True)
                taken = (perf_counter() - begun) * 1e3, (_cpu() - worked) * 1e3
                found = re.search(r"cuda ([\d.]+) ms", done.stdout)
                assert found is not None and (name == "no GPU" or f"cuda: {name.split()[0]} × " in done.stdout), done.stdout
                if number >= 2:  # the first writes the compiled files
                    times[name].append(taken)
                    probes[name].append(float(found[1]))
    for name in commands:
        wall, cpu = (median(column) for column in zip(*times[name], strict=True))
        print(f"{name:22} {wall:6.1f} ms, {cpu:6.1f} of the CPU; the probe of CUDA {median(probes[name]):5.1f} ms")


def _cpu() -> float:
    """Seconds that the processes which have ended worked: on a busy machine the better measure."""
    spent = os.times()
    return spent.children_user + spent.children_system


if __name__ == "__main__":
    main()
