"""The byte-level tokenizer of the recipe: token 0–255 is that byte, token 256 ends a document. Needs no file, no network."""

from __future__ import annotations

from typing import Any

END = 256  # the id of END_TEXT
END_TEXT = "<|endoftext|>"
VOCABULARY = 257


def byte_tokenizer(context: int) -> Any:
    """A transformers tokenizer over bytes that `save_pretrained` writes and `AutoTokenizer.from_pretrained` loads.

    `context` is the model's longest sequence in tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(
        models.BPE(vocab={letter: byte for byte, letter in enumerate(letters())} | {END_TEXT: END}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_TEXT,
        eos_token=END_TEXT,
        pad_token=END_TEXT,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


def letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary, as GPT-2's files write it.

    A byte that Latin-1 prints stands for itself; the others take the letters from U+0100 on, in order.
    """
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printed else next(spare)) for byte in range(256)]
