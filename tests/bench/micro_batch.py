"""--micro-batch auto on a model that does not fit at the asked size: what was tried, how long that took, and the curve.

    python tests/bench/micro_batch.py [--rows N] [--limits none address group] [--mib N]

`hwal train` runs a stack of blocks on global batches of N rows, under three limits: none; of the worker's address space, as
`ulimit -v` sets it, where the allocator says no; and of a memory control group, where the kernel kills (needs one that can be
made beneath this process's own: root, usually). --mib: what each leaves for training, beside the imports.

Columns: starts of the run; the sizes that failed; the size found; seconds in all, and seconds of a run with that size from the
start; the largest relative difference of a loss to the run without a limit; and the same with the size from the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

STEPS, BLOCKS, WIDTH = 5, 8, 128
MIB = 1 << 20
IMPORTED = 350  # MiB: a worker's resident memory before there is a model, and its parent's
GROUP = {1: ("memory.limit_in_bytes", "memory"), 2: ("memory.max", "")}


def job(rows: int) -> None:
    """The script that is trained."""
    import resource

    import torch
    from stack import Stack
    from torch.utils.data import DataLoader, TensorDataset

    import hwal

    with hwal.start("torch") as rt:
        with rt.scope():
            model = Stack(BLOCKS, WIDTH)
            optimizer = torch.optim.AdamW(model.parameters())
            data = torch.randn(rows * STEPS, WIDTH)
        net, optimizer = rt.prepare(model, optimizer)
        if room := int(os.environ.get("ROOM", "0")):
            held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            limit = -(-(held + room * MIB) // (64 * MIB)) * 64 * MIB
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for _ in rt.epochs(1):
            for (x,) in rt.feed(DataLoader(TensorDataset(data), batch_size=rows, shuffle=True)):
                rt.backward((net(x) - x).pow(2).mean())
                rt.step(optimizer)


@contextmanager
def group(limit: int) -> Iterator[Path | None]:
    """A memory control group of `limit` bytes beneath this process's own; None where none can be made."""
    rows = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    version, path = next(((1, path) for _, names, path in rows if "memory" in names.split(",")), (2, rows[-1][2]))
    file, mount = GROUP[version]
    folder = Path("/sys/fs/cgroup", mount, path.strip("/"), f"hwal-bench-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        (folder / file).write_text(str(limit))
        yield folder
    finally:
        folder.rmdir()


def train(scratch: Path, name: str, rows: int, room: int, folder: Path | None, *flags: str) -> tuple[float, str, list[float]]:
    """Seconds of a run, what it printed, and its losses. It must end well."""
    environ = {**os.environ, "HWAL_PROGRESS": "off", "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(scratch / "cache")}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    environ["MALLOC_ARENA_MAX"] = (
        "1"  # what more of them reserve of the address space differs from start to start, and so the limit
    )
    command = [sys.executable, "-m", "hwal", "train", "--device", "cpu", "--precision", "fp32", "--out", name, *flags, __file__]
    if folder is not None:  # a shell, so that nothing of Python's runs between fork and exec
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(folder / "cgroup.procs"), *command]
    begun = perf_counter()
    done = subprocess.run(
        [*command, "--job", str(rows)],
        cwd=scratch,
        env={**environ, "ROOM": str(room)},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stderr}")
    lines = (scratch / name / "metrics.jsonl").read_text().splitlines()
    return seconds, done.stderr, [json.loads(line)["loss"] for line in lines]


def search(scratch: Path, kind: str, rows: int, mib: int, folder: Path | None, whole: list[float]) -> None:
    room = mib if kind == "address" else 0
    seconds, said, losses = train(scratch, kind, rows, room, folder, "--micro-batch", "auto")
    failed = re.findall(r"micro-batch (\d+) did not fit", said)
    found = json.loads((scratch / kind / "plan.json").read_text())["micro_batch"]
    again, _, more = train(scratch, f"{kind}-again", rows, room, folder, "--micro-batch", "auto")
    given, _, _ = train(scratch, f"{kind}-given", rows, room, folder, "--micro-batch", str(found))
    apart = max(abs(a - b) / abs(b) for a, b in zip(losses + more, whole + whole, strict=True))
    what = f"{kind:9}{len(failed) + 1:7}  {', '.join(failed) or '-':28}{found:7}"
    print(f"{what}{seconds:9.1f}{given:9.1f}{apart:12.1e}{again:11.1f}", flush=True)
    for line in said.splitlines():
        if "did not fit" in line:
            print(f"  {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--limits", nargs="+", choices=("none", "address", "group"), default=["none", "address", "group"])
    parser.add_argument("--mib", type=int, default=120)
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        job(args.job)
        return
    print(f"{args.rows} rows of width {WIDTH}, {BLOCKS} blocks, {STEPS} steps; {args.mib} MiB beside the imports")
    print(f"{'limit':9}{'starts':>7}  {'failed':28}{'found':>7}{'seconds':>9}{'given':>9}{'difference':>12}{'from cache':>11}")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        _, _, whole = train(scratch, "whole", args.rows, 0, None)
        for kind in args.limits:
            if kind != "group":
                search(scratch, kind, args.rows, args.mib, None, whole)
                continue
            with group((IMPORTED + args.mib) * MIB) as folder:
                if folder is None:
                    print("group    : no memory control group can be made here")
                else:
                    search(scratch, kind, args.rows, args.mib, folder, whole)


if __name__ == "__main__":
    main()
