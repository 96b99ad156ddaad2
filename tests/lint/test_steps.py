"""What is told of a torch step. The first rows were counted with torch_xla 2.8, later ones that no counter needs were not;
tests/bench/lint_ptx.py counts the rules' examples."""

from __future__ import annotations

import pytest

from hwal.lint import check

STEP = """\
import torch
import torch_xla

def train(model, loader, optimizer):
    for step, (x, y) in enumerate(loader):
        loss = model(x, y)
        {line}
        loss.backward()
        optimizer.step()
        torch_xla.sync()
"""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("loss = loss ** step", True),
        ("loss = (1.0 + step) ** loss", True),
        ("loss = loss + torch.zeros(step + 1).sum()", True),
        ("loss = loss + torch.roll(x, step, 0).sum()", True),
        ("loss = loss + x.repeat(step + 1, 1).sum()", True),
        ("for _ in range(step): loss = loss * 0.5", True),
        ("loss = loss * step", False),
        ("loss = loss * 0.9**step", False),
        ("loss = step - loss / (1 + step)", False),
        ("loss = torch.where(loss > step, loss, float(step))", False),
        ("loss = loss ** 2", False),
        ("for _ in range(3): loss = loss * 0.5", False),
    ],
)
def test_a_number_is_a_constant_of_the_graph_where_it_compiles_again(line: str, told: bool) -> None:
    assert ("PTX608" in {found.code for found in check(STEP.format(line=line), target="tpu")}) is told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("loss = loss + torch.linalg.qr(x)[1].sum()", True),
        ("loss = loss + torch.fft.fft(x).real.sum()", True),
        ("loss = loss + torch.nn.functional.interpolate(x, scale_factor=2, mode='bicubic').sum()", True),
        ("loss = loss + torch.nn.functional.interpolate(x, scale_factor=2, mode='bilinear').sum()", False),
        ("loss = loss + torch.linalg.svd(x)[1].sum() + torch.linalg.eigvalsh(x).sum()", False),
        ("loss = loss + torch.logdet(x) + torch.quantile(x, 0.5)", False),
    ],
)
def test_an_operator_that_runs_on_the_host(line: str, told: bool) -> None:
    assert ("PTX606" in {found.code for found in check(STEP.format(line=line), target="tpu")}) is told


LOOP = """\
import torch
import torch_xla


def train(model, loader, optimizer):
    for i, x in enumerate(loader):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        {line}
        torch_xla.sync()
"""


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('print(f"loss {loss:.3f}")', "PTX601"),
        ('print(f"step {i}")', None),
        ("assert loss >= 0", "PTX602"),
        ("assert i >= 0", None),
        ("floor = max(0.0, loss)", "PTX602"),
        ("last = max(i, 2)", None),
        ("done = loss > 1 if i > 3 and not loss < 2 else False", "PTX602"),
        ("done = i > 3 and not i % 2", None),
    ],
)
def test_every_way_to_ask_a_tensor_in_a_step(line: str, code: str | None) -> None:
    found = {one.code for one in check(LOOP.format(line=line), select=("PTX601", "PTX602"))}
    assert found == (set() if code is None else {code})


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("if i % 100 == 0: print(loss.item())", False),
        ("if not i % args.every: print(loss.item())", False),
        ("if i % 100 == 99 and rank == 0: print(loss.item())", False),
        ("if (i + 1) % 100 == 0 or i == last: print(loss.item())", False),
        ("if self.global_step % 100 == 0: print(loss.item())", False),
        ("print(loss.item()) if i % 100 == 0 else None", False),
        ("i % 100 == 0 and print(loss.item())", False),
        ("log = i % 100 == 0\n        if log: print(loss.item())", False),
        ("if i % 100: continue\n        print(loss.item())", False),
        ("if i % 100 == 0: print(i)\n        else: print(loss.item())", True),
        ("if i % 100 == 0 or rank == 0: print(loss.item())", True),
        ("if i % 100: print(loss.item())", True),
        ("if i % 1 == 0: print(loss.item())", True),
        ("if i % 100 != 0: print(loss.item())", True),
        ("if x.shape[0] % 8 == 0: print(loss.item())", True),
        ("if rank % 8 == 0: print(loss.item())", True),
        ("if rank == 0: print(loss.item())", True),
        ("if (i + 1) == 1: print(loss.item())", False),
        ("if i - 1 == len(loader): print(loss.item())", False),
        ("if i >= 1000: print(loss.item()); break", False),
        ("for k in range(3):\n            if i >= 1000: print(loss.item()); break", True),
        ("if loss.shape[0] > 3: print(loss.item()); break", True),
        ("if i % every < 1: print(loss.item())", False),
        ("if i % every < 2: print(loss.item())", True),
        ("if i == i: print(loss.item())", True),
        ("if x.shape[0] == log_step: print(loss.item())", True),
        ("if (i + 1) % accum == 0:\n            optimizer.step()\n            print(loss.item())", True),
        ("if (i + 1) % accum: continue\n        optimizer.step()\n        print(loss.item())", True),
        ("if (i + 1) % 100 == 0:\n            scheduler.step()\n            print(loss.item())", False),
        ("if epoch == 0: print(loss.item())", True),
        ("if name == 'loss %d' % i: print(loss.item())", True),
        ("xm.add_step_closure(lambda: print(loss.item()))", False),
        ("add_step_closure(lambda loss: print(loss.item()), args=(loss,))", False),
        ("def show(): print(loss.item())\n        xm.add_step_closure(show)", False),
        ("def show(): print(loss.item())\n        show()", True),
        ("read = lambda: loss.item()\n        total += read()", True),
        ("total += (lambda t: t.item())(loss)", True),
        ("total += sum(map(lambda t: t.item(), [loss, x]))", True),
        ("x.register_hook(lambda gradient: print(loss.item()))", True),
    ],
)
def test_a_host_read_every_so_many_steps_is_none_in_each(lines: str, told: bool) -> None:
    assert ("PTX601" in {found.code for found in check(LOOP.format(line=lines), select=("PTX601",))}) is told


@pytest.mark.parametrize(
    ("parameter", "told"),
    [
        ("mask", True),
        ("mask: torch.Tensor | None = None", True),
        ("causal=True", False),
        ("config", False),
        ("causal: bool", False),
    ],
)
def test_what_forward_is_given_is_a_tensor_unless_it_says_otherwise(parameter: str, told: bool) -> None:
    name = parameter.partition(":")[0].partition("=")[0]
    text = (
        "import torch\nimport torch_xla\n\nclass Net(torch.nn.Module):\n"
        f"    def forward(self, x, {parameter}):\n        if {name}:\n            x = x * 2\n        return x\n"
    )
    assert ("PTX602" in {found.code for found in check(text, select=("PTX602",))}) is told


BATCHES = """\
import torch
import torch_xla
import torch_xla.core.xla_model as xm

{made}

for epoch in range(3):
    for i in range(0, 1000, 50):
        {line}
        loss = model(x).sum()
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
"""


@pytest.mark.parametrize(
    ("made", "line", "told"),
    [
        ("X = torch.randn(1000, 4)", "x = X[i:i + 50].to(device)", False),
        ("X = torch.randn(1000, 4)", "x = X.narrow(0, i, 50).to(device)", False),
        ("X = torch.randn(1000, 4).float()", "rows = X[i:i + 50]; x = rows.to(device)", False),
        ("X, Y = torch.randn(1000, 4), 3\nX = X / 2 if Y else X", "x = X[i:i + 50].to(device)", False),
        ("X = torch.randn(1000, 4).to(xm.xla_device())", "x = X[i:i + 50].to(torch.float32)", True),
        ("X = torch.randn(1000, 4, device='xla')", "x = X[i:i + 50]", True),
        ("X = torch.randn(1000, 4)\nX = X.to(xm.xla_device())", "x = X[i:i + 50]", True),
        ("torch.set_default_device('xla')\nX = torch.randn(1000, 4)", "x = X[i:i + 50]", True),
        ("with torch.device('xla'):\n    X = torch.randn(1000, 4)", "x = X[i:i + 50]", True),
        ("x = torch.zeros(3)", "seen = torch.zeros(1000); seen[i] = 1.0", False),
        ("x = torch.zeros(3)", "seen = torch.zeros(1000, device=device); seen[i] = 1.0", True),
    ],
)
def test_a_place_of_the_hosts_own_tensor_makes_no_graph(made: str, line: str, told: bool) -> None:
    text = BATCHES.format(made=made, line=line)
    assert ("PTX608" in {found.code for found in check(text, target="tpu")}) is told


ACCUMULATED = """\
import torch
import torch_xla
import torch_xla.core.xla_model as xm

def step(optimizer):
    optimizer.step()

def train(model, loader, optimizer):
    for step_, (x, y) in enumerate(loader):
        for micro in range(4):
            loss = model({part}).sum()
            loss.backward()
            {within}
        {after}
"""


@pytest.mark.parametrize(
    ("part", "within", "after", "told"),
    [
        ("x[micro * 8:(micro + 1) * 8]", "pass", "xm.optimizer_step(optimizer, barrier=True)", False),
        ("x[micro * 8:(micro + 1) * 8]", "pass", "optimizer.step(); torch_xla.sync()", False),
        ("x[micro * 8:(micro + 1) * 8]", "pass", "step(optimizer)", False),
        ("x[micro * 8:(micro + 1) * 8]", "xm.mark_step()", "xm.optimizer_step(optimizer, barrier=True)", True),
        ("x ** step_", "pass", "xm.optimizer_step(optimizer, barrier=True)", True),
    ],
)
def test_a_loop_within_a_step_is_the_same_in_each(part: str, within: str, after: str, told: bool) -> None:
    text = ACCUMULATED.format(part=part, within=within, after=after)
    assert ("PTX608" in {found.code for found in check(text, target="tpu")}) is told


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("Normal(x, x.exp())", True),
        ("Normal(x, x.exp(), validate_args=True)", True),
        ("Normal(x, x.exp(), validate_args=False)", False),
        ("Normal(x, x.exp(), validate_args=asked)", False),
        ("Normal(x, x.exp(), **options)", False),
        ("Independent(Normal(x, x.exp(), validate_args=False), 1)", False),
        ("Independent(Normal(x, x.exp()), 1)", True),
    ],
)
def test_a_distribution_looks_at_its_arguments_unless_it_is_told_not_to(made: str, told: bool) -> None:
    text = "from torch.distributions import Independent, Normal\n" + LOOP.format(line=f"d = {made}")
    assert len([one for one in check(text, select=("PTX601",)) if one.code == "PTX601"]) == told
