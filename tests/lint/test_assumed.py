"""Which functions without a caller are taken for compiled ones, and which for what runs on the host."""

from __future__ import annotations

import pytest

from hwal.lint import check

HEAD = "import numpy as np\nimport tensorflow as tf\nfrom transformers import AutoTokenizer\n\n"

EAGER = {
    "a search that uses where it broke off": """
def components(x, k):
    s, u, v = tf.linalg.svd(x - tf.reduce_mean(x, 0))
    for i in range(k):
        if s[i] < 1e-6:
            break
    return v[:, :i]
""",
    "a search that goes on from where it broke off": """
def found(x, n):
    for i in range(n):
        if x[i] < 1e-6:
            break
    if n > 3:
        i = i + 1
    for j in range(i):
        x = x + j
    return x
""",
    "a model that is asked until it ends": """
def greedy(model, ids, n=20):
    for _ in range(n):
        following = tf.argmax(model(ids)[:, -1], -1)
        ids = tf.concat([ids, following[:, None]], 1)
        if tf.reduce_all(following == 2):
            break
    return ids
""",
    "text of another library": """
tokenizer = AutoTokenizer.from_pretrained("x")

def words(logits):
    ids = tf.argmax(logits, -1)
    if tf.reduce_all(ids == 0) and bool(ids[0] > 1):
        return []
    return tokenizer.batch_decode(ids)
""",
}

COMPILED = {
    "a loop that breaks, whose counter nobody needs": """
def grown(x):
    for _ in range(5):
        if tf.reduce_sum(x) > 50.0:
            break
        x = x * 2.0
    return x
""",
    "a search whose counter's name is another loop's afterwards": """
def picked(x):
    for i in range(3):
        if i == 2:
            break
    for i in range(3):
        x = x + i
    shifted = [x + i for i in range(2)]
    if bool(tf.reduce_sum(x) > 0):
        return x
    return shifted[0]
""",
    "a search whose counter is set anew": """
def counted(x):
    for i in range(3):
        if i == 2:
            break
    i = 0
    return tf.linalg.det(x) + i
""",
    "a model that is asked a fixed number of times": """
def refined(model, x):
    for _ in range(3):
        x = model(x)
    return x * tf.linalg.det(x)
""",
}


@pytest.mark.parametrize("name", EAGER)
def test_what_only_eager_code_does_is_no_error(name: str) -> None:
    assert [found for found in check(HEAD + EAGER[name]) if found.severity == "error"] == []


@pytest.mark.parametrize("name", EAGER)
def test_it_is_one_where_its_text_asks_for_a_trace(name: str) -> None:
    text = HEAD + EAGER[name].replace("\ndef ", "\n@tf.function(jit_compile=True)\ndef ")
    assert [found for found in check(text) if found.severity == "error"]


@pytest.mark.parametrize("name", COMPILED)
def test_what_a_library_computes_is_taken_for_compiled(name: str) -> None:
    assert [found for found in check(HEAD + COMPILED[name]) if found.severity == "error"]
