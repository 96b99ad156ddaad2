"""keras-resize

What: `Resizing` and `UpSampling2D` with an interpolation that XLA has no kernel for.

Why: XLA compiles bilinear and nearest only. The model fails when it is first run.

Bad:
    import keras

    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Resizing(4, 4, interpolation="bicubic")])

Good:
    import keras

    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Resizing(4, 4, interpolation="bilinear")])

Fix safety: unsafe: another interpolation gives other pixels.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hwal.lint import edits
from hwal.lint.diagnostic import Finding, Fix, Rule
from hwal.lint.file import File, keyword
from hwal.lint.rules.xla404_keras_layer_disables_jit import in_model

METHODS = ("bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")


def _check(file: File) -> Iterator[Finding]:
    for name, call, _ in file.named_calls:
        last = name.rpartition(".")[2]
        if name.startswith(("keras.layers.", "keras.ops.image.")) and last in ("Resizing", "UpSampling2D", "resize"):
            how = keyword(call, "interpolation")
            if (
                isinstance(how, ast.Constant)
                and how.value in METHODS
                and (last == "UpSampling2D" or last == "resize" or in_model(file, call))
            ):
                fix = Fix("unsafe", "other pixels", (edits.replace(file.source, how, '"bilinear"'),))
                yield Finding(
                    call,
                    f"XLA has no kernel for {how.value} resizing",
                    'interpolation="bilinear" or "nearest", or resize in the input pipeline',
                    fix=fix,
                )


RULE = Rule("XLA405", "keras-resize", "error", _check, __doc__, scope="module", fix="unsafe")
