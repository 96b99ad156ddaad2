"""The recipe: its flags, the models it takes and refuses, and what a run of it leaves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hwal.cli import recipe_flags
from hwal.errors import UsageError, VersionError
from hwal_torch import recipe
from hwal_torch.causal import PRESETS, build_model, find_model, read_language
from hwal_torch.tokenizer import END, byte_tokenizer

SMALL: dict[str, Any] = {"vocab_size": 300, "n_positions": 48, "n_embd": 16, "n_layer": 1, "n_head": 2}

# flags


def test_the_command_line_knows_the_presets() -> None:
    assert tuple(PRESETS) == recipe_flags.PRESETS


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["--steps", "0"], "--steps: '0' is not a number of 1 or more"),
        (["--lr", "-1"], "--lr"),
        (["--lr", "nan"], "not a number above 0"),
        (["--optimizer", "adam"], "did you mean adamw?"),
        (["--seqlen", "3"], "--seqlen"),
    ],
)
def test_wrong_flags_are_usage_errors(argv: list[str], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        recipe.flags().parse_args(argv)
    assert what in caught.value.what


def test_the_command_line_and_the_recipe_have_the_same_flags() -> None:
    from hwal.cli.flags import OPTIMIZERS, RECIPE

    own = {name for action in recipe.flags()._actions for name in action.option_strings} - {"-h", "--help"}
    assert own == {row.flag for row in RECIPE}
    assert OPTIMIZERS == recipe.OPTIMIZERS


# models


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        find_model("smal")
    assert caught.value.hint == "--model small"
    with pytest.raises(UsageError) as caught:
        find_model("someone/gpt2-medium")
    assert "downloads nothing" in str(caught.value.why)


def test_a_folder_beside_it_may_be_meant(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-9").mkdir()
    with pytest.raises(UsageError) as caught:
        find_model(str(tmp_path / "chekpoint-9"))
    assert caught.value.hint == f"--model {tmp_path / 'checkpoint-9'}"


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        find_model(str(tmp_path))


def test_a_checkpoint_needs_its_tokenizer(tmp_path: Path) -> None:
    transformers.GPT2Config(**SMALL).save_pretrained(tmp_path)
    assert not find_model(str(tmp_path)).trained
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match="has no tokenizer"):
        find_model(str(tmp_path))
    byte_tokenizer(48).save_pretrained(tmp_path)
    assert find_model(str(tmp_path)).trained


@pytest.mark.parametrize(("name", "millions"), [("tiny", 1.0), ("small", 10.8), ("gpt2", 124)])
def test_presets_have_the_size_they_say(name: str, millions: float) -> None:
    language = read_language(find_model(name), None)
    with torch.device("meta"):
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_config(language.config)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)
    assert not [m for m in model.modules() if isinstance(m, torch.nn.Dropout) and m.p]
    assert language.seq_len == PRESETS[name].seq_len


@pytest.mark.parametrize(
    ("config", "sizes", "seq_len", "what"),
    [
        ("T5Config", {}, None, "t5 is not a causal language model"),
        ("GPT2Config", SMALL, 49, "--seq-len 49 is more than the model's 48 positions"),
        ("GPT2Config", {**SMALL, "vocab_size": 256}, None, "vocabulary is too small: 256 < 257"),
    ],
)
def test_configs_that_cannot_be_trained_are_refused(
    tmp_path: Path, config: str, sizes: dict[str, Any], seq_len: int | None, what: str
) -> None:
    getattr(transformers, config)(**sizes).save_pretrained(tmp_path)
    with pytest.raises(UsageError) as caught:
        read_language(find_model(str(tmp_path / "config.json")), seq_len)
    assert what in caught.value.what


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        read_language(find_model(str(tmp_path)), None)


def test_a_model_that_sees_ahead_is_refused(tmp_path: Path) -> None:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 300}
    transformers.BertConfig(**size).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="sees the tokens"):
        build_model(read_language(find_model(str(tmp_path)), 8))
    transformers.BertConfig(**size, is_decoder=True).save_pretrained(tmp_path)
    build_model(read_language(find_model(str(tmp_path)), 8))


def test_any_config_is_built_over_bytes_in_fp32(tmp_path: Path) -> None:
    transformers.LlamaConfig(
        vocab_size=512, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, dtype="bfloat16"
    ).save_pretrained(tmp_path)
    language = read_language(find_model(str(tmp_path)), 32)
    model = build_model(language)
    assert language.bytes_only
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.generation_config.eos_token_id == END


def test_damaged_weights_are_told_in_words(tmp_path: Path) -> None:
    transformers.GPT2Config(**SMALL).save_pretrained(tmp_path)
    byte_tokenizer(48).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UsageError, match="the model cannot be built"):
        build_model(read_language(find_model(str(tmp_path)), None))


# optimizers and schedule


@pytest.mark.parametrize("name", ["adamw", "adafactor", "sgd"])
def test_optimizers_take_every_parameter_once_and_lower_the_loss(name: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
    optimizer = recipe.build_optimizer(name, model, 1e-2)
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    assert all(group["weight_decay"] == 0 for group in optimizer.param_groups for p in group["params"] if p.ndim < 2)
    data, target = torch.randn(32, 4), torch.randn(32, 1)

    def loss() -> torch.Tensor:
        return ((model(data) - target) ** 2).mean()

    before = loss().item()
    for _ in range(10):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < before


def test_the_8_bit_optimizer_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("bitsandbytes", "bitsandbytes.optim", "torchao", "torchao.optim"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(VersionError) as caught:
        recipe.build_optimizer("adamw8bit", torch.nn.Linear(2, 2), 1e-3)
    assert str(caught.value.hint).startswith("pip install ")


def test_the_schedule_warms_up_and_falls_to_its_floor() -> None:
    factors = [recipe.Schedule(100)(step) for step in range(101)]
    assert factors[0] == pytest.approx(1 / 5)
    assert max(factors) == pytest.approx(1.0)
    assert factors.index(max(factors)) in (4, 5)
    assert factors[5:] == sorted(factors[5:], reverse=True)
    assert factors[-1] == pytest.approx(recipe.FLOOR)
    assert recipe.Schedule(1)(0) == 1.0


def test_the_command_to_go_on_repeats_what_was_asked() -> None:
    args = recipe.flags().parse_args(["--model", "small", "--data", "my notes.txt", "--seq-len", "16", "--steps", "30"])
    assert recipe.resume_command("hwal train", Path("runs/recipe"), recipe.flags(), args) == (
        "hwal train --resume runs/recipe --model small --data 'my notes.txt' --seq-len 16 --steps 60"
    )


# runs


def hwal_train(folder: Path, *argv: str, code: int = 0) -> tuple[str, str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-m", "hwal", "train", "--device", "cpu", *argv],
        cwd=folder, env=environ, capture_output=True, encoding="utf-8", timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def records(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_leaves_what_it_says_and_goes_on(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    stdout, stderr = hwal_train(
        tmp_path, "--steps", "20", "--seq-len", "64", "--save-every", "8", "--eval-every", "6", "--out", "run"
    )
    run = tmp_path / "run"
    lines = records(run)
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert lines[-1]["loss"] < 3.6 < 5 < lines[0]["loss"] < 6
    assert [line["step"] for line in lines if "eval_loss" in line] == [6, 12, 18, 20]
    assert all(line["count"] == 8 * 64 for line in lines)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [f"step-{n:08d}" for n in (8, 16, 20)]
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"20 steps in [\d.]+ s, loss 5\.\d+ to [23]\.\d+, \S+ tokens/s; see run\n", stderr)
    assert "⣀ loss" in stdout

    tokenizer = AutoTokenizer.from_pretrained(run / "model", local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(run / "model", local_files_only=True)
    prompt = tokenizer("The ", return_tensors="pt")
    written = tokenizer.decode(model.generate(**prompt)[0])
    assert written.startswith("The ")
    assert len(written) > len("The ")

    hwal_train(tmp_path, "--resume", "run", "--steps", "24", "--seq-len", "64")
    assert [line["step"] for line in records(run)] == list(range(1, 25))

    hwal_train(tmp_path, "--model", "run/model", "--steps", "2", "--seq-len", "64", "--out", "tuned")
    assert records(tmp_path / "tuned")[0]["loss"] < 3.6  # it begins with what the first run learned


@pytest.mark.slow
def test_two_processes_and_micro_batches_give_the_same_curve(tmp_path: Path) -> None:
    flags = ("--steps", "6", "--seq-len", "48", "--precision", "fp32", "--eval-every", "3")
    hwal_train(tmp_path, *flags, "--out", "one")
    hwal_train(tmp_path, *flags, "--out", "two", "-n", "2", "--micro-batch", "2")
    one, two = records(tmp_path / "one"), records(tmp_path / "two")
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-6)
    assert [line.get("eval_loss", 0) for line in two] == pytest.approx([line.get("eval_loss", 0) for line in one], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adafactor", "sgd"])
def test_the_other_optimizers_learn_at_their_own_rate(tmp_path: Path, optimizer: str) -> None:
    hwal_train(tmp_path, "--optimizer", optimizer, "--steps", "30", "--seq-len", "64", "--out", "run")
    assert records(tmp_path / "run")[-1]["loss"] < 3.8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (("--data", "nothing.txt"), "no such data file: nothing.txt"),
        (("--model", "tinny"), "did you mean|--model tiny"),
        (("--data", "short.txt"), r"too short: 12 tokens"),
    ],
)
def test_mistakes_are_told_without_a_traceback(tmp_path: Path, argv: tuple[str, ...], what: str) -> None:
    (tmp_path / "short.txt").write_text("eleven char")
    _, stderr = hwal_train(tmp_path, *argv, code=2)
    assert re.search(what, stderr)
    assert "Traceback" not in stderr
