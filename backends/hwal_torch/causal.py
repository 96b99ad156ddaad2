"""Which causal language model the recipe trains: a preset, a transformers config, or a local checkpoint. Never the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hwal.errors import UsageError, nearest
from hwal_torch.tokenizer import END, VOCABULARY, byte_tokenizer

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
PLAIN_ATTENTION = 256  # tokens up to which plain attention beats the fused kernel on a CPU (by 1.05 in fp32, 1.15 in bf16)
LONGEST_DEFAULT = 512  # tokens a sample, for models of one's own that can do more


@dataclass(frozen=True)
class Preset:
    """A GPT-2 without dropout, so that its curve is the same at any number of processes. `batch` counts samples of a step."""

    hidden: int
    layers: int
    heads: int
    seq_len: int = 256
    batch: int = 8
    lr: float = 1e-3
    vocabulary: int = VOCABULARY


PRESETS: Mapping[str, Preset] = {
    "tiny": Preset(192, 2, 3, lr=2e-3),  # 1.0 M parameters
    "small": Preset(384, 6, 6),  # 10.8 M
    "gpt2": Preset(768, 12, 12, seq_len=1024, lr=6e-4, vocabulary=50257),  # 124 M: GPT-2's shape, so that speeds compare
}
OWN_BATCH = 8
OWN_LR = {False: 3e-4, True: 5e-5}  # whether the weights come trained


@dataclass(frozen=True)
class Source:
    """What --model names. `path` is None for a preset; `trained` when weights lie there."""

    name: str
    path: Path | None = None
    trained: bool = False
    own_tokenizer: bool = False

    @property
    def lr(self) -> float:
        return PRESETS[self.name].lr if self.path is None else OWN_LR[self.trained]

    @property
    def batch(self) -> int:
        return PRESETS[self.name].batch if self.path is None else OWN_BATCH


def find_model(name: str) -> Source:
    """Looks up a preset, a checkpoint's folder or a config.json. Raises UsageError; touches no framework."""
    if name in PRESETS:
        return Source(name)
    where = f"--model {name}"
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix != ".json":
            raise UsageError(f"{path} is not a config.json", where=where, hint="a folder, a config.json, or a preset")
        return Source(name, path, own_tokenizer=_holds(path.parent, TOKENIZER))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(
                f"the folder {path} holds no config.json", where=where, hint="the folder that save_pretrained made"
            )
        trained, own_tokenizer = _holds(path, WEIGHTS), _holds(path, TOKENIZER)
        if trained and not own_tokenizer:
            raise UsageError(
                f"the checkpoint {path} has no tokenizer",
                where=where,
                why="its weights only fit the tokens they were trained on",
                hint=f"copy tokenizer.json and tokenizer_config.json of that model into {path}",
            )
        return Source(name, path, trained, own_tokenizer)
    near = nearest(path.name, [*PRESETS, *_siblings(path)])
    why = "hwal downloads nothing: fetch a model's folder first, and name the folder" if "/" in name else None
    hint = f"--model {near if near in PRESETS else path.parent / near}" if near else None
    raise UsageError(f"no model {name!r}: neither a preset ({', '.join(PRESETS)}) nor a path", where=where, why=why, hint=hint)


def _holds(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in patterns)


def _siblings(path: Path) -> list[str]:
    try:
        return sorted(item.name for item in path.parent.iterdir() if item.is_dir() or item.name == "config.json")
    except OSError:
        return []


@dataclass(frozen=True)
class Language:
    """A model and its words: `config` describes the model, `tokenizer` goes with it, `bytes_only` when tokens are bytes."""

    source: Source
    config: Any
    tokenizer: Any
    bytes_only: bool
    seq_len: int


def read_language(source: Source, seq_len: int | None) -> Language:
    """The config and tokenizer of a source, and the tokens a sample. Raises UsageError for what cannot be trained."""
    if source.path is None:
        preset = PRESETS[source.name]
        length = seq_len or preset.seq_len
        return Language(source, _gpt2(preset, length), byte_tokenizer(length), True, length)
    from transformers import AutoConfig, AutoTokenizer

    where = f"--model {source.name}"
    folder = source.path if source.path.is_dir() else source.path.parent
    with _plain_words(where, "the model's config cannot be read"):
        config = AutoConfig.from_pretrained(source.path, local_files_only=True, trust_remote_code=False)
    _check_causal(config, where)
    length = _sample_length(config, seq_len, where)
    if source.own_tokenizer:
        with _plain_words(where, "its tokenizer cannot be read"):
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    else:
        tokenizer = byte_tokenizer(length)
        config.bos_token_id = config.eos_token_id = config.pad_token_id = END
    words = VOCABULARY if not source.own_tokenizer else len(tokenizer)
    have = config.get_text_config().vocab_size
    if have < words:
        raise UsageError(
            f"the model's vocabulary is too small: {have} < {words} tokens",
            where=where,
            why="the tokenizer beside it has more" if source.own_tokenizer else "256 bytes and the end of a text are 257",
            hint=f'"vocab_size": {words} in {folder / "config.json"}',
        )
    return Language(source, config, tokenizer, not source.own_tokenizer, length)


def _gpt2(preset: Preset, length: int) -> Any:
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=preset.vocabulary,
        n_positions=length,
        n_embd=preset.hidden,
        n_layer=preset.layers,
        n_head=preset.heads,
        activation_function="gelu_pytorch_tanh",  # GPT-2's own function in one kernel instead of eight
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=END,
    )


def _check_causal(config: Any, where: str) -> None:
    from transformers import AutoModelForCausalLM

    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UsageError(
            f"{config.model_type} is not a causal language model",
            where=where,
            why="it has no head that predicts the next token",
            hint="a decoder such as gpt2, llama or qwen3",
        )


def _sample_length(config: Any, asked: int | None, where: str) -> int:
    most: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    if asked is None:
        return min(most or LONGEST_DEFAULT, LONGEST_DEFAULT)
    if most is not None and asked > most:
        raise UsageError(
            f"--seq-len {asked} is more than the model's {most} positions", where=where, hint=f"--seq-len {most}, or less"
        )
    return asked


def build_model(language: Language) -> Any:
    """The model in fp32, new weights or the checkpoint's. Raises UsageError; so too for a model that sees the next tokens."""
    from transformers import AutoModelForCausalLM

    source = language.source
    where = f"--model {source.name}"
    attention = {"attn_implementation": "eager"} if source.path is None and language.seq_len <= PLAIN_ATTENTION else {}
    with _plain_words(where, "the model cannot be built"):
        if source.trained:
            model = AutoModelForCausalLM.from_pretrained(
                source.path, local_files_only=True, trust_remote_code=False, dtype=torch.float32
            )
        else:
            model = AutoModelForCausalLM.from_config(language.config, trust_remote_code=False, dtype=torch.float32, **attention)
    if source.path is not None and _sees_ahead(model):
        raise UsageError(
            f"{type(model).__name__} sees the tokens that it should predict",
            where=where,
            why="its output at one position changes with the tokens after it",
            hint='"is_decoder": true in its config.json, or a model made for text generation',
        )
    if language.bytes_only and getattr(model, "generation_config", None) is not None:
        words = model.generation_config
        words.bos_token_id = words.eos_token_id = words.pad_token_id = END
        words.do_sample, words.temperature = True, 0.8  # the likeliest next byte, again and again, goes in circles
        words.max_new_tokens = max(1, min(120, language.seq_len // 2))
    return model


@torch.no_grad()
def _sees_ahead(model: Any) -> bool:
    was = model.training
    model.eval()
    first = torch.arange(8).remainder(4)[None] + 1
    second = first.clone()
    second[0, -1] += 1
    before, after = (model(input_ids=tokens, use_cache=False).logits[0, :-1].float() for tokens in (first, second))
    model.train(was)
    return bool((before - after).abs().max() > 1e-4 * before.std())  # rounding is a thousand times below


class _plain_words:
    """Turns what transformers raises about a user's files into a UsageError with the first line of its message."""

    def __init__(self, where: str, what: str) -> None:
        self.where, self.what = where, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        from safetensors import SafetensorError

        if isinstance(
            error, OSError | ValueError | KeyError | TypeError | AttributeError | ImportError | RuntimeError | SafetensorError
        ):
            text = str(error).strip().split("\n")[0] or type(error).__name__
            raise UsageError(self.what, where=self.where, why=text) from error
