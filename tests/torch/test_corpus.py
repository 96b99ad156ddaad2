"""Text in, windows out; the byte-level tokenizer; the curve."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwal.errors import UsageError
from hwal.texts import documents, files_of
from hwal_torch import curve
from hwal_torch.corpus import Windows, byte_tokens, split, stacked, tokenized
from hwal_torch.tokenizer import END, VOCABULARY, byte_tokenizer, letters

# documents


def test_without_data_there_is_the_text_of_python() -> None:
    (text,) = documents([])
    assert len(text) > 100_000
    assert b'The "assert" statement' in text
    assert documents([]) == [text]


def test_a_folder_gives_its_texts_sorted_without_hidden_and_binary_ones(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    for name, content in {
        "b.txt": b"second",
        "a.md": b"first",
        "sub/c.rst": b"third",
        ".git/config": b"no",
        ".hidden": b"no",
        "x.png": b"\x89PNG\0\0",
        "blank.txt": b" \n",
    }.items():
        (tmp_path / name).write_bytes(content)
    said: list[str] = []
    assert documents([str(tmp_path)], said.append) == [b"first", b"second", b"third"]
    assert said == [f"--data {tmp_path}: 1 binary file passed over"]


def test_patterns_and_several_sources_keep_their_order(tmp_path: Path) -> None:
    for name in ("1.txt", "2.txt", "3.log"):
        (tmp_path / name).write_text(name)
    assert documents([str(tmp_path / "3.log"), str(tmp_path / "*.txt")]) == [b"3.log", b"1.txt", b"2.txt"]


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "shakespeare.txt").write_text("…")
    with pytest.raises(UsageError) as caught:
        documents([str(tmp_path / "shakespere.txt")])
    assert "no such data file" in caught.value.what
    assert caught.value.hint == f"--data {tmp_path / 'shakespeare.txt'}"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        files_of(str(tmp_path / "none" / "a.txt"))
    assert caught.value.why == f"there is no folder {tmp_path / 'none'}"


@pytest.mark.parametrize(
    ("make", "source", "what"),
    [
        (lambda d: (d / "b.bin").write_bytes(b"a\0b"), "b.bin", "not a text file"),
        (lambda d: (d / "e.txt").write_bytes(b""), "e.txt", "there is no text to train on"),
        (lambda d: (d / "empty").mkdir(), "empty", "the folder has no files"),
        (lambda d: None, "*.txt", "no file matches the pattern"),
    ],
)
def test_what_is_no_text_is_an_error(tmp_path: Path, make: object, source: str, what: str) -> None:
    make(tmp_path)  # type: ignore[operator]
    with pytest.raises(UsageError, match=what) as caught:
        documents([str(tmp_path / source)])
    assert caught.value.where == f"--data {tmp_path / source}"


# tokens and windows


def test_bytes_are_tokens_and_documents_end() -> None:
    assert byte_tokens([b"ab", bytes([0, 255])]).tolist() == [97, 98, END, 0, 255, END]


def test_tokenized_documents_end_too() -> None:
    tokens = tokenized([b"ab", "é".encode()], byte_tokenizer(16))
    assert tokens.tolist() == [97, 98, END, 195, 169, END]


@given(count=st.integers(2, 200), length=st.integers(1, 20))
def test_windows_predict_every_token_but_the_first_once(count: int, length: int) -> None:
    if count < length + 1:
        return
    windows = Windows(torch.arange(count, dtype=torch.int16), length)
    targets = [token for i in range(len(windows)) for token in windows[i][1:].tolist()]
    whole = (count - 1) // length * length
    assert targets == list(range(1, whole + 1))
    assert all(torch.equal(windows[i][1:] - 1, windows[i][:-1]) for i in range(len(windows)))
    assert torch.equal(windows.__getitems__(list(range(len(windows)))), stacked([windows[i] for i in range(len(windows))]))


def test_the_end_is_held_out_and_never_trained_on() -> None:
    tokens = torch.arange(10_000, dtype=torch.int16)
    corpus = split(tokens, 64)
    trained = {int(t) for i in range(len(corpus.train)) for t in corpus.train[i]}
    held_out = {int(t) for i in range(len(corpus.held_out)) for t in corpus.held_out[i]}
    assert max(trained) < min(held_out)
    assert min(held_out) == 9500
    train, evaluate = corpus.loaders(8)
    assert next(iter(train)).shape == (8, 65)
    assert next(iter(train)).dtype == torch.int64
    assert sum(len(batch) for batch in evaluate) == len(corpus.held_out)


@given(count=st.integers(0, 60), length=st.integers(1, 30))
def test_a_text_is_long_enough_or_the_error_says_what_would_do(count: int, length: int) -> None:
    tokens = torch.zeros(count, dtype=torch.int16)
    if count >= 2 * (length + 1):
        corpus = split(tokens, length)
        assert len(corpus.train) >= 1
        assert len(corpus.held_out) >= 1
        return
    with pytest.raises(UsageError) as caught:
        split(tokens, length)
    assert f"{count} tokens" in caught.value.what
    assert str(2 * (length + 1)) in str(caught.value.why)
    assert caught.value.hint is not None
    if caught.value.hint.startswith("--seq-len"):
        split(tokens, int(caught.value.hint.split()[1].rstrip(",")))


# the tokenizer


def test_the_alphabet_is_the_one_of_byte_level_tokenizers() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert sorted(letters()) == sorted(ByteLevel.alphabet())
    assert letters()[ord("A")] == "A"
    assert letters()[ord(" ")] == "Ġ"
    assert letters()[ord("\n")] == "Ċ"


def test_the_tokenizer_survives_its_folder(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    byte_tokenizer(64).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert len(tokenizer) == VOCABULARY
    assert tokenizer.model_max_length == 64
    assert tokenizer.eos_token_id == END

    @given(st.text(st.characters(exclude_categories=["Cs"])))
    def round_trip(text: str) -> None:
        ids = tokenizer(text)["input_ids"]
        assert ids == list(text.encode())
        assert tokenizer.decode(ids) == text

    round_trip()


# the curve

FALLING = curve.Curve(tuple((step, 5 / step) for step in range(1, 301)), ((100, 1.0), (300, 0.5)), (10.0, 30.0, 20.0))


def test_metrics_are_read_past_cut_lines_and_numbers_that_are_none(tmp_path: Path) -> None:
    lines = [
        json.dumps({"step": 1, "loss": 5.0, "count": 100, "seconds": 0.5}),
        json.dumps({"step": 2, "loss": "nan", "count": 100, "seconds": 0.25}),
        json.dumps({"step": 3, "loss": 4.0, "eval_loss": 4.5, "seconds": 0.0, "count": 1}),
        '{"step": 4, "lo',
        "[]",
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    read = curve.read_curve(tmp_path)
    assert read == curve.Curve(((1, 5.0), (3, 4.0)), ((3, 4.5),), (200.0, 400.0))
    assert read.rate == 300.0
    assert curve.read_curve(tmp_path / "none") == curve.Curve()


@pytest.mark.parametrize("dots", [True, False])
@pytest.mark.parametrize("columns", [40, 60, 80])
def test_the_curve_fits_its_columns_and_falls(dots: bool, columns: int) -> None:
    lines = curve.draw(FALLING, columns, dots=dots).split("\n")
    assert max(map(len, lines)) <= columns
    assert len(lines) == curve.HEIGHT + 2
    high, low = (float(lines[row].split()[0]) for row in (0, curve.HEIGHT - 1))
    assert low < 0.1 < 0.5 < high <= 5
    assert ("●" if dots else "o") in "".join(lines[:-1])
    body = [line.partition("┤" if dots else "|")[2] for line in lines[: curve.HEIGHT]]
    assert 0 < len(body[0]) < len(body[-1])
    assert dots or "\n".join(lines).isascii()


def test_too_little_makes_no_curve() -> None:
    assert curve.draw(curve.Curve(((1, 2.0),))) == ""
    assert curve.draw(curve.Curve(((1, 2.0), (2, 2.0)))) != ""  # flat, and no division by zero


def test_a_stream_that_is_not_unicode_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    curve.show_curve(FALLING, stream)
    stream.flush()
    assert raw.getvalue().count(b"\n") == curve.HEIGHT + 2
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8")
    curve.show_curve(FALLING, stream)
    stream.flush()
    assert "●" in raw.getvalue().decode()


@pytest.mark.slow
def test_the_png_is_one(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert curve.save_png(FALLING, tmp_path / "loss.png", "tiny") is None
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "cannot be written" in str(curve.save_png(FALLING, tmp_path / "none" / "loss.png", "tiny"))


def test_without_matplotlib_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert "pip install matplotlib" in str(curve.save_png(FALLING, tmp_path / "loss.png", "tiny"))
    assert not (tmp_path / "loss.png").exists()
