"""Every mistake on the command line, as printed: what follows `$`, the exit code, the text."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.paper import Result

SHEET = """
$ hwal
2
hwal: error: which command? There are train, devices, doctor, lint, selftest
  where: hwal
  try:   hwal --help

$ hwal trian
2
hwal: error: unknown command 'trian'; there are train, devices, doctor, lint, selftest
  where: hwal trian
  try:   did you mean train?

$ hwal xyzzy
2
hwal: error: unknown command 'xyzzy'; there are train, devices, doctor, lint, selftest
  where: hwal xyzzy
  try:   hwal --help

$ hwal s.py --lr 3
2
hwal: error: 's.py' is no command
  where: hwal s.py
  try:   hwal train s.py --lr 3

$ hwal --device cpu s.py
2
hwal: error: --device comes after a command; there are train, devices, doctor, lint, selftest
  where: hwal --device
  try:   hwal train --device cpu s.py

$ hwal devices --jsn
2
hwal: error: unknown flag --jsn
  where: hwal devices … --jsn
  try:   did you mean --json?

$ hwal devices cpu
2
hwal: error: unknown command 'cpu'; there are order, select, groups
  where: hwal devices
  try:   hwal devices --help

$ hwal devices --from
2
hwal: error: --from: expected one argument
  where: hwal devices
  try:   hwal devices --help

$ hwal devices --from nothing.json
2
hwal: error: cannot read nothing.json: No such file or directory
  try:   hwal devices --json > FILE writes such a file

$ hwal devices --from s.py
2
hwal: error: not a file that hwal or a vendor's tool wrote: it begins with 'import torch'
  where: s.py, line 1
  try:   hwal devices --json, nvidia-smi topo -m or amd-smi topology write such a file; hwal devices --help names all

$ hwal devices --from empty.json
2
hwal: error: not a document that `hwal devices --json` printed: it has no list of probes
  where: empty.json

$ hwal train --presicion bf16 s.py
2
hwal: error: unknown flag --presicion
  where: hwal train … --presicion
  try:   did you mean --precision?

$ hwal train --dev cpu s.py
2
hwal: error: unknown flag --dev
  where: hwal train … --dev
  try:   did you mean --device?

$ hwal train -x
2
hwal: error: unknown flag -x
  where: hwal train … -x
  try:   hwal train --help

$ hwal train --compile=yes s.py
2
hwal: error: --compile takes no value
  where: hwal train … --compile=yes
  try:   --compile

$ hwal train --device
2
hwal: error: --device needs a value
  where: hwal train … --device
  try:   --device D: auto, or a backend and which of its devices: cpu, cpu:0 (default auto)

$ hwal train --out --seed 3 s.py
2
hwal: error: --out needs a value
  where: hwal train … --out
  try:   --out DIR: the run's folder (default: runs/NAME, a new one for each run)

$ hwal train --out '' s.py
2
hwal: error: --out needs a value
  where: hwal train … --out ''
  try:   --out DIR: the run's folder (default: runs/NAME, a new one for each run)

$ hwal train --device= s.py
2
hwal: error: --device needs a value
  where: hwal train … --device ''
  try:   --device D: auto, or a backend and which of its devices: cpu, cpu:0 (default auto)

$ hwal train --hang-timeout foo s.py
2
hwal: error: --hang-timeout 'foo': must be a number of seconds, or off
  where: hwal train
  try:   hwal train --help

$ hwal train /dev/null
2
hwal: error: /dev/null is no plain file
  where: hwal train /dev/null
  why:   every rank reads the script anew, from its path
  try:   write it into a file: hwal train script.py

$ hwal train --lr -1
2
hwal: error: --lr '-1': must be more than 0, and finite
  where: hwal train
  try:   hwal train --help

$ hwal train --data nonexist
2
hwal: error: no such data file: nonexist
  where: --data nonexist
  try:   --data PATH, a text file or a folder of them; without --data it learns the English that Python carries

$ hwal train --model nonexist
2
hwal: error: no model 'nonexist': neither a preset (tiny, small, gpt2) nor a path
  where: --model nonexist
  try:   --model tiny, or the folder or config.json of a transformers model

$ hwal train --precision bf61 s.py
2
hwal: error: --precision 'bf61': must be one of auto, fp32, tf32, bf16, fp16; did you mean 'bf16'?
  where: hwal train
  try:   hwal train --help

$ hwal train --seed one s.py
2
hwal: error: --seed 'one': must be a whole number
  where: hwal train
  try:   hwal train --help

$ hwal train -n 0 s.py
2
hwal: error: -n '0': must be 1 or more
  where: hwal train
  try:   hwal train --help

$ hwal train --lr 3 s.py
2
hwal: error: --lr is the built-in recipe's, and there is a script
  where: hwal train --lr 3 … s.py
  try:   if it is the script's, it goes behind: hwal train s.py --lr 3

$ hwal train --lr fast
2
hwal: error: --lr 'fast': must be a number
  where: hwal train
  try:   hwal train --help

$ hwal train --optimizer adam
2
hwal: error: --optimizer 'adam': must be one of adamw, adafactor, adamw8bit, sgd; did you mean 'adamw'?
  where: hwal train
  try:   hwal train --help

$ hwal train sx.py
2
hwal: error: there is no script sx.py
  where: hwal train sx.py
  try:   did you mean s.py?

$ hwal train both.py
2
hwal: error: both.py imports both torch and keras: which of them trains?
  where: both.py
  try:   --framework torch, or --framework keras

$ hwal train --device null --framework keras s.py
2
hwal: error: this version has no keras runtime for null; there is torch
  why:   framework keras (asked for by --framework)
  try:   --framework torch

$ hwal train --device cpi s.py
2
hwal: error: unknown device 'cpi'; there are auto, cuda, rocm, cpu, tpu, null
  where: --device cpi
  try:   did you mean cpu?

$ hwal train --device cpu:7 s.py
2
hwal: error: cpu has no device '7'; there are 0 (node0)
  where: --device cpu:7
  try:   --device cpu

$ hwal train --device cuda:0 s.py
2
hwal: error: no cuda device on this machine; ready here: cpu (1 × Toy CPU), null (3 × imaginary device)
  where: --device cuda:0
  try:   --device cpu, or --device auto

$ hwal train --device tpu:v5e-8 s.py
2
hwal: error: no tpu device on this machine; ready here: cpu (1 × Toy CPU), null (3 × imaginary device)
  where: --device tpu:v5e-8
  try:   --device cpu, or --device auto

$ hwal train --device null -n 4 s.py
2
hwal: error: 4 processes need 4 devices, 3 chosen (4 > 3)
  where: -n 4 --device null
  why:   processes of null do not share a device
  try:   -n 3

$ hwal train --precision tf32 s.py
2
hwal: error: 1 × Toy CPU cannot compute in tf32; it can in bf16, fp32, fp16 (emulated)
  where: --precision tf32
  try:   --precision bf16, or --precision auto

$ hwal train --strategy fsdp:full+offload -n 1 s.py
2
hwal: error: +offload keeps shards in the host's memory, and one process has none
  where: --strategy fsdp:full+offload
  try:   -n 2 or more; in one process --grad-checkpoint and a smaller --micro-batch save memory

$ hwal train --strategy fsdp.yaml s.py
2
hwal: error: the FSDP config file cannot be read: No such file or directory
  where: --strategy fsdp.yaml
  try:   the path of a file that accelerate config wrote, or of a Trainer's fsdp_config

$ hwal train --strategy ./ s.py
2
hwal: error: the FSDP config file cannot be read: Is a directory
  where: --strategy ./
  try:   the path of a file that accelerate config wrote, or of a Trainer's fsdp_config

$ hwal train --strategy empty.json s.py
2
hwal: error: the file configures no FSDP
  where: --strategy empty.json
  why:   it is empty
  try:   a file with fsdp_config, as accelerate config writes it; without FSDP, --strategy ddp

$ hwal train --strategy NO_SHARD s.py
2
hwal: error: unknown strategy 'NO_SHARD'; there are auto, single, ddp, fsdp:full, fsdp:grad-op, fsdp:hybrid, fsdp:hybrid-grad-op
  where: --strategy NO_SHARD
  try:   did you mean ddp?

$ hwal train --strategy zero-2 s.py
2
hwal: error: unknown strategy 'zero-2'; there are auto, single, ddp, fsdp:full, fsdp:grad-op, fsdp:hybrid, fsdp:hybrid-grad-op
  where: --strategy zero-2
  try:   did you mean fsdp:grad-op?

$ HWAL_STRATEGY=ddp hwal train --device null -n 2 --strategy single s.py
2
hwal: error: single is for one process, the world has 2 (2 ≠ 1)
  where: --strategy single
  try:   -n 1, or --strategy ddp

$ hwal train --dry-run --keep newest s.py
2
hwal: error: --keep newest is not a rule
  where: --keep
  why:   'newest' is none of last:N, best:METRIC, best:METRIC:min, best:METRIC:max
  try:   --keep last:3, --keep last:3,best:eval_loss, or --keep all

$ hwal train --out s.py/run s.py
2
hwal: error: the run's folder s.py/run cannot be written: Not a directory
  where: --out
  try:   choose another --out

$ HWAL_STRATEGY=xx hwal train s.py
2
hwal: error: unknown strategy 'xx'; there are auto, single, ddp, fsdp:full, fsdp:grad-op, fsdp:hybrid, fsdp:hybrid-grad-op
  where: HWAL_STRATEGY=xx
  try:   an FSDP config file's name ends in .yaml or .json

$ hwal train --virtual-ranks 4 -n 3 s.py
2
hwal: error: virtual ranks must be a multiple of the world size: 4 = 1 × 3 + 1
  where: --virtual-ranks 4
  why:   each of the 3 processes does the same number of parts
  try:   --virtual-ranks 6

$ hwal train --engine slurm s.py
2
hwal: error: engine 'slurm' is not in this version
  where: --engine slurm
  try:   --engine direct or torchrun

$ hwal train --engine-args "--x 'y" s.py
2
hwal: error: --engine-args cannot be split into words: No closing quotation
  where: --engine-args "--x 'y"
  try:   as one word of the shell's, quotes closed: --engine-args '--nnodes 2'

$ hwal train --resume runs/old s.py
2
hwal: error: there is no run at runs/old
  where: --resume runs/old
  try:   --resume DIR, the folder of a run; --out runs/old --resume begins one where there is none yet

$ hwal train --plan nothing.json s.py
2
hwal: error: cannot read the plan nothing.json: No such file or directory
  where: --plan nothing.json
  try:   hwal train --dry-run … > FILE writes one

$ hwal train --plan empty.json s.py
2
hwal: error: neither a plan nor what --dry-run prints
  where: empty.json
  try:   hwal train --dry-run … > FILE writes such a file

$ HWAL_PRECISION=bf61 hwal train s.py
2
hwal: error: HWAL_PRECISION='bf61': must be one of auto, fp32, tf32, bf16, fp16; did you mean 'bf16'?
  where: environment
  try:   HWAL_PRECISION=P: auto, fp32, tf32, bf16 or fp16 (auto: what the device computes natively)

$ HWAL_PROGRESS=bars hwal train s.py
2
hwal: error: HWAL_PROGRESS='bars': must be one of bar, lines, off
  where: environment
  try:   did you mean bar?

$ HWAL_TOPOLOGY=nowhere.json hwal train s.py
2
hwal: error: cannot read nowhere.json: No such file or directory
  try:   hwal devices --json > FILE writes such a file

$ RANK=0 WORLD_SIZE=3 LOCAL_WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=other MASTER_PORT=2222 hwal train s.py
1
hwal: error: 3 ranks, 2 of them here: not equally many on every machine
  where: world from torchrun
  why:   3 = 1 × 2 + 1
  try:   start as many processes on every machine
"""


def cases() -> list[tuple[str, int, str]]:
    """(command, exit code, text) of each paragraph of the sheet."""
    found = []
    for paragraph in SHEET.strip().split("\n\n"):
        command, code, *text = paragraph.splitlines()
        found.append((command.removeprefix("$ "), int(code), "\n".join(text) + "\n"))
    return found


@pytest.mark.parametrize(("command", "code", "text"), cases(), ids=[case[0] for case in cases()])
def test_as_printed(
    command: str, code: int, text: str, folder: Path, hwal: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "s.py").write_text("import torch\n")
    (folder / "both.py").write_text("import torch\nimport keras\n")
    (folder / "empty.json").write_text("{}")
    words = shlex.split(command)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    assert words[0] == "hwal"
    result = hwal(*words[1:])
    assert result.err == text
    assert (result.code, result.out) == (code, "")
    assert not (folder / "runs").exists()
