"""Small models of many shapes, for tests of what looks into a model: real transformers architectures, and hand-written ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
import transformers
from torch import nn


def transformer(name: str, layers: int = 2, **changes: Any) -> nn.Module:
    """A transformers model of random weights: 2 layers (of each stack) of width 16."""
    torch.manual_seed(0)
    config, model = ARCHITECTURES[name]
    made: nn.Module = getattr(transformers, model)(config(layers, **changes))  # by its name: the import takes a second
    return made.train()


def _decoder(layers: int, **changes: Any) -> dict[str, Any]:
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": layers, "num_attention_heads": 2}
    return {**sizes, "intermediate_size": 32, "max_position_embeddings": 32, "pad_token_id": 0, **changes}


def _gpt2(layers: int, **changes: Any) -> Any:
    sizes = {"vocab_size": 32, "n_positions": 32, "n_embd": 16, "n_layer": layers, "n_head": 2}
    return transformers.GPT2Config(**{**sizes, "bos_token_id": 1, "eos_token_id": 2, **changes})


def _t5(layers: int, **changes: Any) -> Any:
    sizes = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": layers, "num_heads": 2}
    return transformers.T5Config(**{**sizes, "decoder_start_token_id": 0, **changes})


def _opt(layers: int, **changes: Any) -> Any:
    return transformers.OPTConfig(**_decoder(layers, ffn_dim=32, word_embed_proj_dim=16, **changes))


def _albert(layers: int, **changes: Any) -> Any:
    return transformers.AlbertConfig(**_decoder(layers, embedding_size=16, **changes))


def _vit(layers: int, **changes: Any) -> Any:
    return transformers.ViTConfig(**{**_decoder(layers), "image_size": 8, "patch_size": 4, **changes})


def _whisper(layers: int, **changes: Any) -> Any:
    sizes = {"vocab_size": 32, "num_mel_bins": 4, "d_model": 16, "max_source_positions": 8, "max_target_positions": 16}
    ends = {part: value for side in ("encoder", "decoder") for part, value in _side(side, layers).items()}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return transformers.WhisperConfig(**{**sizes, **ends, **tokens, **changes})


def _side(name: str, layers: int) -> dict[str, int]:
    return {f"{name}_layers": layers, f"{name}_attention_heads": 2, f"{name}_ffn_dim": 32}


ARCHITECTURES: Mapping[str, tuple[Callable[..., Any], str]] = {
    "gpt2": (_gpt2, "GPT2LMHeadModel"),
    "llama": (lambda n, **c: transformers.LlamaConfig(**_decoder(n, **c)), "LlamaForCausalLM"),
    "qwen2": (lambda n, **c: transformers.Qwen2Config(**_decoder(n, **c)), "Qwen2ForCausalLM"),
    "opt": (_opt, "OPTForCausalLM"),
    "bert": (lambda n, **c: transformers.BertConfig(**_decoder(n, **c)), "BertForMaskedLM"),
    "albert": (_albert, "AlbertForMaskedLM"),
    "t5": (_t5, "T5ForConditionalGeneration"),
    "vit": (_vit, "ViTForImageClassification"),
    "whisper": (_whisper, "WhisperForConditionalGeneration"),
}


class Block(nn.Module):
    """A block as vision transformers have them, with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class Vision(nn.Module):
    """A vision transformer as written by hand."""

    def __init__(self, layers: int = 3, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Linear(12, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Residual(nn.Module):
    """A basic block of a ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(1, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.norm(self.convolution(x)))


class ResNet(nn.Module):
    """Stages of blocks, as torchvision writes them."""

    def __init__(self, stages: int = 4, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU())
        for stage in range(stages):
            self.add_module(f"layer{stage + 1}", nn.Sequential(Residual(width), Residual(width)))
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for name, part in self.named_children():
            x = part(x) if name.startswith("layer") else x
        return self.head(x.mean((2, 3)))


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])
