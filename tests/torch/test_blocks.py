"""Which parts of a model are its blocks."""

from __future__ import annotations

from collections import OrderedDict
from textwrap import dedent

import pytest
import torch
from torch import nn

from hwal.errors import PlanError
from hwal.values import Wrap
from hwal_torch.blocks import find_blocks
from tests.torch.models import Block, Residual, ResNet, Vision, perceptron, transformer

OWN = "the model's own _no_split_modules"


@pytest.mark.parametrize(
    ("name", "names", "why"),
    [
        ("gpt2", ["transformer.h.0", "transformer.h.1"], f"2 × GPT2Block, {OWN}"),
        ("llama", ["model.layers.0", "model.layers.1"], f"2 × LlamaDecoderLayer, {OWN}"),
        ("qwen2", ["model.layers.0", "model.layers.1"], f"2 × Qwen2DecoderLayer, {OWN}"),
        ("opt", ["model.decoder.layers.0", "model.decoder.layers.1"], f"2 × OPTDecoderLayer, {OWN}"),
        (
            "bert",
            ["bert.encoder.layer.0", "bert.encoder.layer.1"],
            f"2 × BertLayer, {OWN}; without 1 × BertEmbeddings, sharing parameters with other parts",
        ),
        (
            "t5",
            ["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"],
            f"4 × T5Block, {OWN}",
        ),
        (
            "vit",
            ["vit.embeddings", "vit.layers.0", "vit.layers.1"],
            f"1 × ViTEmbeddings and 2 × ViTLayer, {OWN}",
        ),
        (
            "whisper",
            ["model.encoder.layers.0", "model.encoder.layers.1", "model.decoder.layers.0", "model.decoder.layers.1"],
            f"2 × WhisperEncoderLayer and 2 × WhisperDecoderLayer, {OWN}",
        ),
    ],
)
def test_transformers_models_say_it_themselves(name: str, names: list[str], why: str) -> None:
    blocks = find_blocks(transformer(name))
    assert list(blocks.names) == names
    assert blocks.why == why


class Wrapped(nn.Module):
    """A model of a script's, with a transformers model in it."""

    def __init__(self, inner: nn.Module, own: object = None) -> None:
        super().__init__()
        self._no_split_modules = own
        self.inner = inner
        self.blocks = nn.ModuleList([Block(16), Block(16)])


def test_a_transformers_model_inside_is_asked_too() -> None:
    inner = transformer("gpt2")
    assert find_blocks(Wrapped(inner)).names == ("inner.transformer.h.0", "inner.transformer.h.1")
    names = find_blocks(Wrapped(inner, {"Block"})).names
    assert names == ("inner.transformer.h.0", "inner.transformer.h.1", "blocks.0", "blocks.1")


def test_class_names_that_no_part_has_fall_through() -> None:
    blocks = find_blocks(Wrapped(perceptron(2, 3), ["Gone"]))
    assert blocks.why == "2 × Block, the class that repeats in blocks"


def repeated(model: nn.Module) -> tuple[tuple[str, ...], str]:
    blocks = find_blocks(model)
    return blocks.names, blocks.why


def test_else_the_class_that_repeats() -> None:
    assert repeated(Vision()) == (("blocks.0", "blocks.1", "blocks.2"), "3 × Block, the class that repeats in blocks")
    names, why = repeated(nn.Transformer(16, 2, 2, 3, 32, batch_first=True))
    assert names[1:3] == ("encoder.layers.1", "decoder.layers.0")
    assert why == (
        "2 × TransformerEncoderLayer and 3 × TransformerDecoderLayer, "
        "the class that repeats in encoder.layers and decoder.layers"
    )
    assert repeated(ResNet(2))[0] == ("layer1.0", "layer1.1", "layer2.0", "layer2.1")
    assert repeated(nn.Sequential(Block(4), nn.ReLU(), Block(4)))[1] == "2 × Block, the class that repeats in Sequential"
    assert repeated(nn.Sequential(nn.ModuleDict({"a": Block(4), "b": Block(4)}), nn.ReLU()))[0] == ("0.a", "0.b")


def test_only_the_outermost_repetition_counts() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([Block(4), Block(4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    assert repeated(nn.ModuleList([Deep(), Deep()]))[0] == ("0", "1")


def test_sequences_are_blocks_unless_blocks_repeat_in_them() -> None:
    def stage() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())

    assert repeated(nn.Sequential(stage(), stage(), nn.Flatten())) == (
        ("0", "1"),
        "2 × Sequential, the class that repeats in Sequential",
    )
    assert repeated(nn.Sequential(nn.Sequential(Residual(3), Residual(3)), stage(), nn.Flatten()))[0] == ("0.0", "0.1")


def test_layers_in_a_row_are_not_blocks() -> None:
    assert repeated(perceptron(2, 3, 3, 4)) == ((), "no blocks: no class repeats, no part has 1,000,000 parameters")
    lists = nn.ModuleList([nn.ModuleList([nn.Linear(2, 2)]), nn.ModuleList([nn.Linear(2, 2)])])  # never called themselves
    assert repeated(lists)[0] == ()


def test_else_by_size() -> None:
    assert repeated(perceptron(2, 1200, 1200, 1200, 3)) == (
        ("2", "4"),
        "2 × Linear, of 1,000,000 parameters or more each",
    )
    halves = nn.Sequential(OrderedDict(body=perceptron(900, 900, 900), head=nn.Linear(900, 2)))  # 2 × 0.81 million
    assert repeated(halves)[0] == ("body",)


def test_a_model_that_is_large_itself_is_no_block_of_its_own() -> None:
    assert repeated(nn.Linear(2000, 2000))[0] == ()


def wrapped(model: nn.Module, *classes: str, least: int | None = None) -> tuple[tuple[str, ...], str]:
    blocks = find_blocks(model, Wrap(classes, least))
    return blocks.names, blocks.why


def test_what_a_file_says_comes_first() -> None:
    gpt2 = transformer("gpt2", 1)
    assert wrapped(gpt2, "GPT2MLP") == (("transformer.h.0.mlp",), "1 × GPT2MLP, the classes asked for")
    nested = ("transformer.h.0", "transformer.h.0.mlp")
    assert wrapped(gpt2, "GPT2MLP", "GPT2Block")[0] == nested
    assert wrapped(gpt2, least=2000)[0] == nested[1:]
    assert wrapped(gpt2, least=1100) == (nested, "1 × GPT2Block and 1 × GPT2MLP, of 1,100 parameters or more each")
    assert wrapped(gpt2) == ((), "no blocks: one unit was asked for")


def test_outermost_blocks_lie_in_no_other() -> None:
    gpt2 = transformer("gpt2", 2)
    blocks = find_blocks(gpt2, Wrap(("GPT2MLP", "GPT2Block")))
    assert len(blocks) == 4
    assert blocks.outermost == tuple(gpt2.transformer.h)


def test_a_class_that_the_model_lacks_is_told() -> None:
    with pytest.raises(PlanError) as caught:
        find_blocks(Vision(), Wrap(("Blok",)))
    assert str(caught.value) == dedent(
        """\
        no part of Vision is a Blok
          where: class to wrap: Blok
          why:   its parts are Linear, Block, LayerNorm, …
          try:   did you mean Block?"""
    )


def test_a_block_that_occurs_twice_counts_once() -> None:
    block = Block(4)
    model = nn.ModuleList([block, Block(4), block])
    assert repeated(model)[0] == ("0", "1")


def test_blocks_that_share_parameters_are_left_out() -> None:
    model = Vision(3)
    model.blocks[0].mlp[0].weight = model.blocks[2].mlp[0].weight
    names, why = repeated(model)
    assert names == ("blocks.1",)
    assert why.endswith("; without 2 × Block, sharing parameters with other parts")
    model = Vision(2)
    model.tied = model.blocks[0].norm  # the module itself is in two places
    assert repeated(model)[0] == ("blocks.1",)
    for block in model.blocks:
        block.norm = model.tied
    assert repeated(model)[1] == (
        "no blocks: the class that repeats in blocks; without 2 × Block, sharing parameters with other parts"
    )


def test_of_nested_blocks_that_share_the_inner_one_is_left_out() -> None:
    model = nn.Sequential(Block(4), nn.ReLU())
    model[0].extra = model[0].norm
    assert wrapped(model, "Block", "LayerNorm")[0] == ("0", "0.norm")  # the same module twice in one block
    model[0].extra = nn.LayerNorm(4)
    model[0].own = model[0].norm.weight
    assert wrapped(model, "Block", "LayerNorm")[0] == ("0", "0.extra")
