"""What `hwal train --framework keras` runs without a script: a causal language model on text, by model.fit.

    hwal train --framework keras [--model tiny] [--data PATH] [--steps 200] …

It leaves in the run's folder: metrics.jsonl, checkpoints/, loss.png, and model.keras, which keras.models.load_model reads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import keras
import numpy
import tensorflow as tf

import hwal
from hwal.errors import UsageError, nearest
from hwal.resuming import resume_command
from hwal.runtime import KerasRuntime
from hwal.texts import documents
from hwal_torch.curve import read_curve, save_png, show_curve  # it draws, and knows of no framework

STEPS = 200
EVERY = 50  # steps between evaluations; the same for every number of steps, so that a run can be resumed to more of them
WARMUP = 0.05  # of the steps
FLOOR = 0.1  # of the peak learning rate, where the cosine ends
DECAY = 0.1
HELD_OUT = 0.05  # the part of the text, its end, that is evaluated on and never trained on
HELD_OUT_WINDOWS = 256
END, VOCABULARY = 256, 257  # a token is a byte, or the end of a document
OPTIMIZERS = ("adamw", "adafactor", "sgd")


@dataclass(frozen=True)
class Size:
    """A preset: width, blocks, attention heads, tokens a sample, samples a global batch, peak learning rate."""

    width: int
    blocks: int
    heads: int
    seq_len: int
    batch: int
    lr: float


SIZES = {"tiny": Size(128, 4, 4, 128, 16, 2e-3), "small": Size(384, 6, 6, 256, 16, 6e-4)}


class Flags(argparse.ArgumentParser):
    """hwal train has checked the flags already; run by hand, a wrong one is an hwal error too."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, where="the recipe's flags", hint="hwal train --help")


def flags() -> argparse.ArgumentParser:
    """The recipe's own flags; `hwal train` shows the same."""
    parser = Flags(prog="hwal train", allow_abbrev=False, description="Trains a causal language model on text.")
    parser.add_argument("--model", default="tiny", help=", ".join(SIZES))
    parser.add_argument("--data", action="append", default=[], help="a text file, folder or glob pattern; may be repeated")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps in all, resumed ones included")
    parser.add_argument("--seq-len", type=int, help="tokens a sample")
    parser.add_argument("--lr", type=float, help="peak learning rate")
    parser.add_argument("--optimizer", default="adamw", help=", ".join(OPTIMIZERS))
    parser.add_argument("--save-every", type=int, help="steps between checkpoints (default: one at each evaluation)")
    parser.add_argument("--eval-every", type=int, default=EVERY, help=f"steps between evaluations ({EVERY})")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Trains by the flags in `argv` (default: the program's). Raises HwalError."""
    args = flags().parse_args(argv)
    size = _one_of("--model", args.model, SIZES)
    _one_of("--optimizer", args.optimizer, OPTIMIZERS)
    if min(args.steps, args.eval_every, args.save_every or 1, args.seq_len or 2) < 1 or (args.lr is not None and args.lr <= 0):
        raise UsageError("--steps, --seq-len, --lr, --save-every and --eval-every are above 0", hint="hwal train --help")
    notes: list[str] = []
    texts = documents(args.data, notes.append)
    with hwal.start(framework="keras") as rt:
        for note in notes:
            rt.say(note)
        train(rt, args, SIZES[size], texts)
    if rt.is_main:
        report(rt, args)


def _one_of(flag: str, name: str, names: Any) -> str:
    if name not in names:
        near = nearest(name, names)
        raise UsageError(
            f"{flag} {name} is none of {', '.join(names)} for Keras",
            where=f"{flag} {name}",
            hint=f"did you mean {near}?" if near else None,
        )
    return name


def train(rt: KerasRuntime, args: argparse.Namespace, size: Size, texts: list[bytes]) -> None:
    """Like any script: a dataset, a model and its optimizer within rt.scope(), model.fit."""
    length = args.seq_len or size.seq_len
    learned, held_out = windows(tokens_of(texts), length)
    # Repeated before it is batched: no batch is less than full, even where the text has fewer windows than one takes.
    data = tf.data.Dataset.from_tensor_slices(learned).shuffle(len(learned[0])).repeat().batch(size.batch, drop_remainder=True)
    test = tf.data.Dataset.from_tensor_slices(held_out).batch(size.batch)
    with rt.scope():
        model = network(size, length)
        optimizer = make_optimizer(args.optimizer, args.lr or size.lr, args.steps)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, **rt.compile_options())
    rt.say(f"{args.model}: {model.count_params():,} parameters; {sum(map(len, texts)):,} bytes of text, {length} a sample")
    model = rt.prepare(model)
    model.fit(
        rt.feed(data),
        epochs=-(-args.steps // args.eval_every),
        steps_per_epoch=args.eval_every,
        validation_data=rt.feed(test, train=False),
        callbacks=[Steps(rt, args.steps, args.save_every)],
    )
    if rt.is_main:
        model.save(rt.run_dir / "model.keras")


class Steps(keras.callbacks.Callback):
    """Ends training at a step, in the midst of an epoch too, and saves every so many: at those steps themselves, so that a
    call from the host, which may be several steps, goes up to the next of them at most."""

    def __init__(self, rt: KerasRuntime, last: int, save_every: int | None) -> None:
        super().__init__()
        self._rt, self._last, self._save_every = rt, last, save_every

    def on_train_begin(self, logs: Any = None) -> None:
        self._at_a_call = int(self.model.steps_per_execution)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._rt.progress.last_step = self._last  # what is shown as the end
        self._up_to_the_next()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        done = self._rt.steps_done
        if done >= self._last:
            self.model.stop_training = True
        elif self._save_every and done % self._save_every == 0:
            self._rt.save()
        self._up_to_the_next()

    def on_train_end(self, logs: Any = None) -> None:
        self.model.steps_per_execution = self._at_a_call

    def _up_to_the_next(self) -> None:
        done = self._rt.steps_done
        stops = [self._last - done, self._save_every - done % self._save_every if self._save_every else self._at_a_call]
        self.model.steps_per_execution = max(1, min(self._at_a_call, *stops))


# data


def tokens_of(texts: Sequence[bytes]) -> Any:
    """Every byte as a token, END after each document. Shape (tokens,), int32."""
    parts = [part for text in texts for part in (numpy.frombuffer(text, numpy.uint8).astype("int32"), [END])]
    return numpy.concatenate(parts).astype("int32")


def windows(tokens: Any, length: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """What to learn and what to be tested on: inputs and targets, each of shape (samples, length). Raises UsageError."""
    apart = max(length + 1, min(int(len(tokens) * HELD_OUT), HELD_OUT_WINDOWS * length + 1))
    if len(tokens) - apart < length + 1:
        raise UsageError(
            f"the text is too short: {len(tokens):,} tokens",
            where=f"--seq-len {length}",
            hint="more text, or a smaller --seq-len",
        )
    return _pairs(tokens[:-apart], length), _pairs(tokens[-apart:], length)


def _pairs(tokens: Any, length: int) -> tuple[Any, Any]:
    count = (len(tokens) - 1) // length
    end = count * length
    return tokens[:end].reshape(count, length), tokens[1 : end + 1].reshape(count, length)


# the model


@keras.saving.register_keras_serializable("hwal")
class Positions(keras.layers.Layer):
    """Adds to every token's vector that of its place, which is learned."""

    def build(self, shape: Any) -> None:
        self.places = self.add_weight(shape=shape[1:], initializer="random_normal", name="places")

    def call(self, x: Any) -> Any:
        return x + keras.ops.cast(self.places, x.dtype)


def network(size: Size, length: int) -> Any:
    """A pre-norm transformer over bytes: (batch, length) int32 -> (batch, length, VOCABULARY) float32."""
    tokens = keras.Input((length,), dtype="int32")
    x = Positions()(keras.layers.Embedding(VOCABULARY, size.width)(tokens))
    for _ in range(size.blocks):
        y = keras.layers.LayerNormalization()(x)
        x = x + keras.layers.MultiHeadAttention(size.heads, size.width // size.heads)(y, y, use_causal_mask=True)
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Dense(4 * size.width, activation="gelu")(y)
        x = x + keras.layers.Dense(size.width)(y)
    x = keras.layers.LayerNormalization()(x)
    return keras.Model(tokens, keras.layers.Dense(VOCABULARY, dtype="float32")(x))


def make_optimizer(name: str, lr: float, steps: int) -> Any:
    """With a linear warm-up, then a cosine down to FLOOR; clipped at norm 1."""
    warmup = max(1, round(steps * WARMUP))
    rate = keras.optimizers.schedules.CosineDecay(0.0, max(1, steps - warmup), FLOOR, warmup_target=lr, warmup_steps=warmup)
    if name == "sgd":
        return keras.optimizers.SGD(rate, momentum=0.9, global_clipnorm=1.0)
    if name == "adafactor":
        return keras.optimizers.Adafactor(rate)
    return keras.optimizers.AdamW(rate, weight_decay=DECAY, beta_2=0.95, global_clipnorm=1.0)


# after the run


def report(rt: KerasRuntime, args: argparse.Namespace) -> None:
    """Draws the curve and says what came of the run."""
    curve = read_curve(rt.run_dir)
    png = rt.run_dir / "loss.png"
    missing = save_png(curve, png, f"{args.model}, Keras")
    show_curve(curve, sys.stdout)
    last = rt.reporter.latest.get("val_loss")
    memory = rt.memory()
    rows = [
        ("held out", f"loss {last:.3f} on text that was not trained on" if last is not None else "not evaluated"),
        ("memory", f"{memory.peak / 2**20:,.0f} MiB at the most ({memory.source})" if memory.peak else "unknown"),
        ("curve", str(png) if missing is None else f"no PNG: {missing}"),
        ("saved", str(rt.checkpoints.path(rt.steps_done))),
        ("model", f"{rt.run_dir / 'model.keras'} (keras.models.load_model reads it)"),
        ("go on", resume_command("hwal train --framework keras", rt.run_dir, flags(), args)),
    ]
    print("\n".join(f"{name:<9} {text}" for name, text in rows), flush=True)


if __name__ == "__main__":
    main()
