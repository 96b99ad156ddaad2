"""What only a real GPU can show, within seven minutes on one machine: the driver's answers, curves, worlds, the runtime suite.

python ci/gpu.py [DEVICE] [FOLDER]     by a Python that has torch for it, nvidia-ml-py, pytest (and tensorflow)

FOLDER (gpu-report, or a new name beside it) must be new. It gets what each part printed, a recorded host (for tests/hosts), the
runs, the suite's report, and report.json with what came of all of it. Each part runs whatever the others did; the exit code is
1 where one failed, or where a curve is not the one it must be. Stopped by a signal, it ends the part that runs, writes the
report of those before, and its exit code is 128 and the signal's number.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from types import FrameType
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
STEPS, MOST = 12, 8  # of the runs that are compared; ranks of a world: a global batch has eight samples
NEAR = 1e-3  # relative: what sums in another order, and another device's exp, make of a loss in fp32 within STEPS
WORLDS = ("ddp", "fsdp", "offload")
RECORD = """
import sys
from hwal.host import Host
from hwal.registry import Registry
from hwal.testing.hosts import record
record(Host(), [Registry(Host()).load(sys.argv[1])], sys.argv[2], "recorded by ci/gpu.py")
"""


class Part(NamedTuple):
    """A command of Python's, and the seconds after which it is ended."""

    name: str
    limit: int
    arguments: tuple[str, ...]


class Outcome(NamedTuple):
    """What came of a part or of a comparison: a sentence, whether it is as it must be, and seconds."""

    name: str
    fine: bool
    said: str
    seconds: float = 0.0


def parts(device: str, out: Path, count: int, keras: bool) -> list[Part]:
    """All of them but the first, which counts the devices. Their limits, and its ten seconds, are 420 in sum."""

    def train(name: str, limit: int, *flags: str, on: str = device, to: str | None = None) -> Part:
        return Part(name, limit, ("-m", "hwal", "train", "--device", on, "--out", str(out / (to or name)), *flags))

    exact = ("--precision", "fp32", "--steps", str(STEPS))
    found = [
        Part("order", 5, ("-m", "hwal", "devices", "order", "--explain", "--device", device)),
        Part("doctor", 10, ("-m", "hwal", "doctor", "--json")),
        Part("launch", 10, ("-m", "hwal", "train", "--device", device, "--dry-run")),
        Part("record", 10, ("-c", RECORD, device, str(out / "host"))),
        train("run", 35, "--steps", "40"),
        train("resume", 25, "--steps", "60", "--resume", to="run"),
        train("exact", 20, "-n", "1", *exact),
        train("host", 30, *exact, on="cpu"),
    ]
    if count > 1:
        ranks = ("-n", str(min(count, MOST)))
        for name, strategy in zip(WORLDS, ("ddp", "fsdp:full", "fsdp:full+offload"), strict=True):
            found.append(train(name, 30, *ranks, "--strategy", strategy, *exact))
    if keras:
        found.append(train("keras", 45, "--framework", "keras", "--steps", str(STEPS)))
    suite = ("-m", "hwal", "selftest", "--device", device, "--out", str(out / "selftest"))
    return [*found, Part("suite", 130 if count > 1 else 220, suite)]


class Stopped(BaseException):
    """A signal has come, whose number it has."""


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """What signals that would end this process do in its place."""
    raise Stopped(number)


def run(part: Part, out: Path) -> Outcome:
    """Runs a part, with all that it starts, and keeps what it prints (NAME.out, NAME.err)."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "backends")))}
    begun = time.monotonic()
    with (out / f"{part.name}.out").open("w") as told, (out / f"{part.name}.err").open("w") as complaints:
        process = subprocess.Popen(
            [PYTHON, *part.arguments], stdout=told, stderr=complaints, env=environ, start_new_session=True
        )
        try:
            said = f"exit code {process.wait(part.limit)}"
        except subprocess.TimeoutExpired:
            said = f"ended after {part.limit} s"
        finally:
            if process.returncode is None:  # its session is its own: a terminal's Ctrl-C does not reach it
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    seconds = time.monotonic() - begun
    return Outcome(part.name, process.returncode == 0, said, round(seconds, 1))


def losses(run: Path) -> list[float]:
    """The loss of each step, from 1 on without a gap; empty where a run has not told them so."""
    try:
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        steps, found = [record["step"] for record in records], [float(record["loss"]) for record in records]
    except (OSError, ValueError, KeyError, TypeError):  # a line that is no JSON, or has no step, or a loss that is no number
        return []
    return found if steps == list(range(1, len(steps) + 1)) else []


def same(name: str, out: Path) -> Outcome:
    """Whether a run has the curve of the one on one device in fp32."""
    ours, theirs = losses(out / "exact"), losses(out / name)
    if len(ours) != STEPS or len(theirs) != STEPS:
        return Outcome(
            f"curve of {name}", False, f"{len(theirs)} losses, and {len(ours)} of one device: {STEPS} each are wanted"
        )
    apart = [abs(a - b) / abs(a) for a, b in zip(ours, theirs, strict=True)]
    far = [each for each in apart if not each <= NEAR]  # one that is not a number is far
    said = f"{STEPS} losses in fp32, {max(apart):.1e} from those of one device at the most; {NEAR:.0e} is allowed"
    return Outcome(f"curve of {name}", not far, said)


def falls(name: str, steps: int, out: Path) -> Outcome:
    """Whether a run has all its steps, and learned something in them."""
    found = losses(out / name)
    if len(found) != steps:
        return Outcome(f"curve of {name}", False, f"{len(found)} losses of {steps}")
    first, last = mean(found[:5]), mean(found[-5:])
    return Outcome(f"curve of {name}", last < 0.9 * first, f"loss {first:.3f} -> {last:.3f} in {steps} steps")


def counted(out: Path, device: str) -> int:
    """How many devices of this kind `hwal devices` has found."""
    try:
        document = json.loads((out / "devices.out").read_text(encoding="utf-8"))
    except ValueError:
        return 0
    return sum(each["backend"] == device for each in document["devices"])


def fresh(name: str | None) -> Path:
    """A folder that was not there: runs refuse one that is in use, and an old report would pass for a new one."""
    if name is not None:
        Path(name).mkdir(parents=True)
        return Path(name).resolve()
    number = 1
    while (folder := Path("gpu-report" if number == 1 else f"gpu-report-{number}")).exists():
        number += 1
    folder.mkdir()
    return folder.resolve()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", default="cuda", metavar="DEVICE", help="cuda (default), rocm")
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="what it writes to (default: gpu-report, or a new one)")
    given = parser.parse_args(arguments)
    device: str = given.device
    try:
        out = fresh(given.folder)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}; name a new folder that can be written to", file=sys.stderr)
        return 2
    done: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        done.append(outcome)
        print(f"{'ok    ' if outcome.fine else 'FAILED'} {outcome.name}: {outcome.said}, {outcome.seconds:g} s", flush=True)

    stopped, count, keras = 0, 0, find_spec("tensorflow") is not None
    try:
        tell(run(Part("devices", 10, ("-m", "hwal", "devices", "--json")), out))
        count = counted(out, device)
        if count == 0:
            tell(Outcome("count", False, f"hwal devices has found no {device} device: {out / 'devices.out'} says why"))
        else:
            for part in parts(device, out, count, keras):
                tell(run(part, out))
            tell(falls("run", 60, out))
            for name in ("host", *(WORLDS if count > 1 else ())):
                tell(same(name, out))
            if keras:
                tell(falls("keras", STEPS, out))
    except Stopped as signalled:
        stopped = int(signalled.args[0])
        tell(Outcome("stopped", False, f"by {signal.Signals(stopped).name}; what comes after was not run"))
    ranked = count > 1 or (stopped and count == 0)  # stopped before they were counted
    left_out = [] if ranked else [f"{', '.join(WORLDS)}: {count} {device} device; that ranks meet over NCCL takes two"]
    left_out += [] if keras else ["keras: tensorflow is not installed"]
    for text in left_out:
        print(f"left out {text}")
    failed = [outcome.name for outcome in done if not outcome.fine]
    report = {"device": device, "count": count, "failed": failed, "left_out": left_out}
    told = {**report, "parts": [outcome._asdict() for outcome in done]}
    (out / "report.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(f"{'failed: ' + ', '.join(failed) if failed else 'all as it must be'}; {out}")
    if stopped:
        return 128 + stopped
    return 1 if failed else 0


if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stop)
    sys.exit(main(sys.argv[1:]))
