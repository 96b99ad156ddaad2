"""What the examples of the PTX rules cost on torch_xla: compilations and host reads of Bad and of Good, counted.

    PJRT_DEVICE=CPU python tests/bench/lint_ptx.py [FILE]        with the Python of an environment that has torch_xla

With a FILE of steps (tests/lint/truth/steps.torch), theirs are counted instead, and written into their headers. Each example
is given a small model on XLA's CPU platform and six batches after two that warm up; a loader, one epoch after its first batch.
Counted over the six:
compilations, executions, and operators that torch_xla has no lowering for or reads on the host (its `aten::` counters).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

if __name__ == "__main__":  # --help, before what is in XLA's environment alone
    PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    PARSER.add_argument("file", type=Path, nargs="?", help="steps to count instead of the rules' examples")
    GIVEN = PARSER.parse_args()

import torch  # noqa: E402
import torch_xla  # noqa: E402
import torch_xla.debug.metrics as met  # noqa: E402

from hwal.lint.catalog import rules  # noqa: E402
from tests.lint.programs import parse_steps, render_steps  # noqa: E402

WARM, STEPS = 2, 6


def batches(device: Any, count: int) -> list[tuple[Any, Any]]:
    """Batches of one shape and other values: what a mask picks differs in number."""
    generator = torch.Generator().manual_seed(len(str(device)) + count)
    rows = [(torch.rand(8, 8, generator=generator) * 2, torch.rand(8, 8, generator=generator) * 2) for _ in range(count)]
    return [(x.to(device), y.to(device)) for x, y in rows]


def counted(run: Callable[[int], None]) -> dict[str, int]:
    """What a run over more batches counts, after one over a few."""
    run(WARM)
    torch_xla.sync()
    met.clear_all()
    run(STEPS)
    torch_xla.sync()

    def samples(name: str) -> int:
        data = met.metric_data(name)
        return data[0] if data else 0

    fallen = {name: met.counter_value(name) for name in met.counter_names() if name.startswith("aten::")}
    return {"compiles": samples("CompileTime"), "runs": samples("ExecuteTime"), "on the host": sum(fallen.values())}


class Model(torch.nn.Module):
    """A layer and its loss, which is what the examples call a model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: Any, y: Any) -> Any:
        return (self.layer(x) - y).square().mean()


def runner(text: str) -> Callable[[int], None] | None:
    """Runs an example over so many batches; None for one that has neither a step, nor a module, nor a loader."""
    names: dict[str, Any] = {"history": []}
    exec(compile(text, "<example>", "exec"), names)
    device = torch_xla.device()
    torch.manual_seed(0)
    if "train" in names:
        model = Model().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        return lambda count: names["train"](model, batches(device, count), optimizer)
    if "loader" in names:

        def epochs(count: int) -> None:
            for rows in names["loader"] if count == STEPS else list(names["loader"])[:1]:
                total = (rows.to(device) * 2).sum()
                torch_xla.sync()
                del total

        return epochs
    kinds = [kind for kind in names.values() if isinstance(kind, type) and issubclass(kind, torch.nn.Module)]
    if not kinds:
        return None
    module = kinds[0]().to(device)

    def forward(count: int) -> None:
        for x, _ in batches(device, count):
            y = module(x)
            torch_xla.sync()
            del y

    return forward


def measured(path: Path) -> None:
    """Counts what each program of a file does, and writes it into the file."""
    done = []
    for step in parse_steps(path.read_text(encoding="utf-8")):
        run = runner(step.text)
        assert run is not None, f"{step.name}: no `train`"
        counts = counted(run)
        print(f"{step.name}: {counts}", flush=True)
        done.append(step._replace(compilations=counts["compiles"], reads=counts["on the host"]))
    path.write_text(render_steps(done), encoding="utf-8")


def main() -> int:
    if GIVEN.file is not None:
        measured(GIVEN.file)
        return 0
    for rule in rules():
        if not rule.code.startswith("PTX"):
            continue
        for title in ("Bad", "Good"):
            text = rule.section(title)
            if "launch(" in text or "cuda" in text:
                print(f"{rule.code} {title:<5} not run: it needs more than one process, or a GPU")
                continue
            run = runner(text)
            said = "no step in it" if run is None else "  ".join(f"{name} {number}" for name, number in counted(run).items())
            print(f"{rule.code} {title:<5} {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
