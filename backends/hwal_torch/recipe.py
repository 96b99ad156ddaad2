"""What `hwal train` runs without a script: a causal language model on text. An ordinary script against the public API.

    hwal train [--model tiny] [--data PATH] [--steps 200] …

It leaves in the run's folder: metrics.jsonl, checkpoints/, loss.png, and model/, which transformers loads.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hwal
from hwal.errors import UsageError, VersionError, nearest
from hwal.resuming import resume_command
from hwal.runtime import TorchRuntime
from hwal.texts import documents
from hwal_torch.causal import Language, build_model, find_model, read_language
from hwal_torch.corpus import byte_tokens, split, tokenized
from hwal_torch.curve import read_curve, save_png, show_curve

STEPS = 200  # a minute with the tiny preset in fp32 on two slow CPU cores
WARMUP = 0.05  # of the steps
FLOOR = 0.1  # of the peak learning rate, where the cosine ends
CLIP = 1.0
DECAY = 0.1
OPTIMIZERS = ("adamw", "adafactor", "adamw8bit", "sgd")
TIMES_LR = {"adafactor": 15.0, "sgd": 50.0}  # these want a larger rate than Adam does: their default is this many times Adam's
EXPORTED = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")


class Flags(argparse.ArgumentParser):
    """hwal train has checked the flags already; run by hand, a wrong one is an hwal error too."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, where="the recipe's flags", hint="hwal train --help")


def positive(text: str) -> int:
    """A count, of 1 or more."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def rate(text: str) -> float:
    """A learning rate, above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def optimizer_name(text: str) -> str:
    """One of OPTIMIZERS."""
    if text not in OPTIMIZERS:
        near = nearest(text, OPTIMIZERS)
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of {', '.join(OPTIMIZERS)}" + (f"; did you mean {near}?" if near else "")
        )
    return text


def flags() -> argparse.ArgumentParser:
    """The recipe's own flags; `hwal train` shows the same."""
    parser = Flags(prog="hwal train", allow_abbrev=False, description="Trains a causal language model on text.")
    parser.add_argument("--model", default="tiny", help="tiny, small, gpt2, a config.json, or a local checkpoint's folder")
    parser.add_argument("--data", action="append", default=[], help="a text file, folder or glob pattern; may be repeated")
    parser.add_argument(
        "--steps", type=positive, default=STEPS, help=f"optimizer steps in all, resumed ones included ({STEPS})"
    )
    parser.add_argument("--seq-len", type=positive, help="tokens a sample")
    parser.add_argument("--lr", type=rate, help="peak learning rate")
    parser.add_argument("--optimizer", type=optimizer_name, default="adamw", help=", ".join(OPTIMIZERS))
    parser.add_argument("--save-every", type=positive, help="steps between checkpoints (default: one at the end)")
    parser.add_argument("--eval-every", type=positive, help="steps between evaluations (default: a quarter of --steps)")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Trains by the flags in `argv` (default: the program's). Raises HwalError."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a recipe that works without a network must not try one
    args = flags().parse_args(argv)
    source = find_model(args.model)
    notes: list[str] = []
    texts = documents(args.data, notes.append)
    with hwal.start(framework="torch") as rt:
        for note in notes:
            rt.say(note)
        _quiet_transformers()
        language = read_language(source, args.seq_len)
        result = train(rt, args, language, texts)
    if rt.is_main:
        report(result, language, args)


def _quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@dataclass(frozen=True)
class Result:
    """What a run came to. `checkpoint` is its last one."""

    run_dir: Path
    checkpoint: Path
    parameters: int
    eval_loss: float
    memory: str


def train(rt: TorchRuntime, args: argparse.Namespace, language: Language, texts: list[bytes]) -> Result:
    """The loop: like any script's, with evaluations and checkpoints every so many steps."""
    tokens = byte_tokens(texts) if language.bytes_only else tokenized(texts, language.tokenizer)
    corpus = split(tokens, language.seq_len)
    loader, held_out = corpus.loaders(language.source.batch)
    with rt.scope():
        model = build_model(language)
        optimizer = build_optimizer(args.optimizer, model, args.lr or language.source.lr * TIMES_LR.get(args.optimizer, 1.0))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, Schedule(args.steps))
    rt.unit = "tokens"
    parameters = sum(p.numel() for p in model.parameters())
    rt.say(f"{args.model}: {parameters:,} parameters; {len(tokens):,} tokens, {language.seq_len} a sample")
    rt.prepare(model, optimizer, scheduler)
    saved = None
    every = args.eval_every or max(1, args.steps // 4)
    loss: float | None = None
    model.train()
    for _ in rt.epochs(steps=args.steps):
        for batch in rt.feed(loader):
            with rt.autocast():
                pair = summed_loss(model, batch)
            rt.backward(pair)
            if rt.step(optimizer, clip=CLIP):
                scheduler.step()
                loss = None
                if rt.steps_done % every == 0 or rt.finished:
                    loss = evaluate(rt, model, held_out)
                    rt.log(eval_loss=loss)
                if args.save_every and rt.steps_done % args.save_every == 0:
                    saved = rt.save()
    if saved is None or saved.name != rt.checkpoints.path(rt.steps_done).name:
        saved = rt.save()
    if loss is None:
        loss = evaluate(rt, model, held_out)
    memory = rt.memory()
    peak = "unknown" if memory.peak is None else f"{memory.peak / 2**20:,.0f} MiB at the most ({memory.source})"
    return Result(rt.run_dir, saved, parameters, loss, peak)


def summed_loss(model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The loss summed over all predicted tokens, and their number. `batch`: (rows, length + 1) tokens."""
    inputs, targets = batch[:, :-1], batch[:, 1:]
    logits = model(input_ids=inputs, use_cache=False).logits
    return cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum"), targets.numel()


@torch.no_grad()
def evaluate(rt: TorchRuntime, model: nn.Module, loader: Any) -> float:
    """Mean loss over the text that is not trained on."""
    model.eval()
    total, count = torch.zeros((), device=rt.device), 0
    for batch in rt.feed(loader, train=False):
        with rt.autocast():
            loss, tokens = summed_loss(model, batch)
        total += loss
        count += tokens
    model.train()
    return rt.mean(total, count)


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then a cosine down to FLOOR: step -> factor of the peak learning rate."""

    steps: int

    def __call__(self, step: int) -> float:
        warmup = max(1, round(self.steps * WARMUP))
        if step < warmup:
            return (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, self.steps - warmup))
        return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * done)) / 2


def build_optimizer(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Matrices decay, biases and norms do not. Raises VersionError where a package is missing."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": DECAY},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if name == "sgd":
        return torch.optim.SGD([{**group, "weight_decay": 0.0} for group in groups], lr=lr, momentum=0.9)
    if name == "adafactor":
        return torch.optim.Adafactor(groups, lr=lr)
    if name == "adamw8bit":
        return _adamw8bit()(groups, lr=lr, betas=(0.9, 0.95))
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def _adamw8bit() -> Any:
    """The 8-bit AdamW of bitsandbytes, which needs an accelerator, or of torchao, which does not."""
    why = []
    for package, module in (("bitsandbytes", "bitsandbytes.optim"), ("torchao", "torchao.optim")):
        if package == "bitsandbytes" and not torch.accelerator.is_available():
            why.append("bitsandbytes' needs an accelerator")
            continue
        try:
            return __import__(module, fromlist=["AdamW8bit"]).AdamW8bit
        except (ImportError, AttributeError, OSError) as error:
            why.append(f"{package}: {str(error).splitlines()[0]}")
    package = "bitsandbytes" if torch.accelerator.is_available() else "torchao"
    raise VersionError(
        "no package here has an 8-bit AdamW", where="--optimizer adamw8bit", why="; ".join(why), hint=f"pip install {package}"
    )


# after the run


def report(result: Result, language: Language, args: argparse.Namespace) -> None:
    """Exports the model, draws the curve and says what came of it."""
    folder = result.run_dir / "model"
    trouble = export(result.checkpoint, folder, language.tokenizer)
    curve = read_curve(result.run_dir)
    png = result.run_dir / "loss.png"
    missing = save_png(curve, png, f"{args.model}, {result.parameters:,} parameters")
    show_curve(curve, sys.stdout)
    rows = [
        ("held out", f"loss {result.eval_loss:.3f} on text that was not trained on"),
        ("speed", f"{curve.rate:,.0f} tokens/s in the median step" if curve.rate else "no step was done"),
        ("memory", result.memory),
        ("curve", str(png) if missing is None else f"no PNG: {missing}"),
        ("saved", str(result.checkpoint)),
        ("model", trouble or f"{folder} (safetensors; transformers loads it)"),
        ("generate", generate_command(folder)),
        ("go on", resume_command("hwal train", result.run_dir, flags(), args)),
    ]
    print("\n".join(f"{name:<9} {text}" for name, text in rows), flush=True)


def export(checkpoint: Path, folder: Path, tokenizer: Any) -> str | None:
    """Puts what transformers wants of a checkpoint, and the tokenizer, into a folder; returns why not where that failed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in [path for pattern in EXPORTED for path in checkpoint.glob(pattern)]:
            shutil.copyfile(path, folder / path.name)
        tokenizer.save_pretrained(folder)
    except OSError as error:
        return f"not exported to {folder}: {error.strerror or error}"
    return None


def generate_command(folder: Path) -> str:
    """What to type to see the model write."""
    call = f"pipeline('text-generation', '{folder.as_posix()}')('The ')[0]['generated_text']"
    return f'python -c "from transformers import pipeline; print({call})"'


if __name__ == "__main__":
    main()
