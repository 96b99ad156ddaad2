"""Families of TensorFlow's functions that XLA cannot compile, and the arguments that XLA must know while it compiles."""

from __future__ import annotations

from collections.abc import Mapping

from hwal.lint.tables.api import OPERATORS
from hwal.lint.tables.kernels import KERNELS

HOST = (
    "io.",
    "audio.decode",
    "audio.encode",
    "image.decode",
    "image.encode",
    "image.random_jpeg_quality",
    "image.adjust_jpeg_quality",
    "image.stateless_random_jpeg",
)
HOST_NAMES = frozenset(
    {
        "print",
        "py_function",
        "numpy_function",
        "compat.v1.py_func",
        "timestamp",
        "compat.v1.Print",
        "image.is_jpeg",
        "image.extract_jpeg_shape",
    }
)
LOOKUP = ("lookup.",)
SEGMENT = frozenset(
    {
        "math.segment_sum", "math.segment_mean", "math.segment_max", "math.segment_min", "math.segment_prod",
        "unique_with_counts", "edit_distance",
}
)  # fmt: skip
SPARSE_FAILING = frozenset(
    {
        "sparse.sparse_dense_matmul", "sparse.reduce_sum", "sparse.reduce_max", "sparse.reduce_sum_sparse",
        "sparse.reduce_max_sparse", "sparse.add", "sparse.concat", "sparse.cross", "sparse.cross_hashed",
        "sparse.fill_empty_rows", "sparse.maximum", "sparse.minimum", "sparse.reorder", "sparse.reset_shape",
        "sparse.reshape", "sparse.segment_mean", "sparse.segment_sum", "sparse.segment_sqrt_n", "sparse.slice",
        "sparse.softmax", "sparse.split", "sparse.bincount", "nn.embedding_lookup_sparse", "nn.safe_embedding_lookup_sparse",
        "ragged.cross", "ragged.cross_hashed", "ragged.range", "ragged.segment_ids_to_row_splits",
        "ragged.row_splits_to_segment_ids", "ragged.stack_dynamic_partitions", "nn.collapse_repeated",
}
)  # fmt: skip

SIZES: Mapping[str, tuple[tuple[int, tuple[str, ...]], ...]] = {
    "range": ((0, ("start",)), (1, ("limit",)), (2, ("delta",))),
    "zeros": ((0, ("shape",)),),
    "ones": ((0, ("shape",)),),
    "fill": ((0, ("dims",)),),
    "eye": ((0, ("num_rows",)), (1, ("num_columns",))),
    "reshape": ((1, ("shape",)),),
    "broadcast_to": ((1, ("shape",)),),
    "tile": ((1, ("multiples",)),),
    "repeat": ((1, ("repeats",)), (2, ("axis",))),
    "one_hot": ((1, ("depth",)),),
    "pad": ((1, ("paddings",)),),
    "transpose": ((1, ("perm",)),),
    "linspace": ((2, ("num",)),),
    "split": ((1, ("num_or_size_splits",)), (2, ("axis",))),
    "concat": ((1, ("axis",)),),
    "gather": ((3, ("axis",)), (4, ("batch_dims",))),
    "expand_dims": ((1, ("axis",)),),
    "reverse": ((1, ("axis",)),),
    "cumsum": ((1, ("axis",)),),
    "math.cumprod": ((1, ("axis",)),),
    "roll": ((2, ("axis",)),),
    "argmax": ((1, ("axis",)),),
    "argmin": ((1, ("axis",)),),
    "reduce_sum": ((1, ("axis",)),),
    "reduce_mean": ((1, ("axis",)),),
    "reduce_max": ((1, ("axis",)),),
    "reduce_min": ((1, ("axis",)),),
    "reduce_prod": ((1, ("axis",)),),
    "reduce_any": ((1, ("axis",)),),
    "reduce_all": ((1, ("axis",)),),
    "scatter_nd": ((2, ("shape",)),),
    "math.unsorted_segment_sum": ((2, ("num_segments",)),),
    "math.unsorted_segment_mean": ((2, ("num_segments",)),),
    "math.unsorted_segment_max": ((2, ("num_segments",)),),
    "math.unsorted_segment_min": ((2, ("num_segments",)),),
    "math.unsorted_segment_prod": ((2, ("num_segments",)),),
    "math.unsorted_segment_sqrt_n": ((2, ("num_segments",)),),
    "random.normal": ((0, ("shape",)),),
    "random.uniform": ((0, ("shape",)),),
    "random.truncated_normal": ((0, ("shape",)),),
    "random.stateless_normal": ((0, ("shape",)),),
    "random.stateless_uniform": ((0, ("shape",)),),
    "random.stateless_truncated_normal": ((0, ("shape",)),),
    "image.resize": ((1, ("size",)),),
    "image.resize_with_pad": ((1, ("target_height",)), (2, ("target_width",))),
    "image.resize_with_crop_or_pad": ((1, ("target_height",)), (2, ("target_width",))),
    "TensorArray": ((1, ("size",)),),
    "linalg.diag": ((1, ("k",)), (2, ("num_rows",)), (3, ("num_cols",))),
    "sequence_mask": ((1, ("maxlen",)),),
    "math.confusion_matrix": ((2, ("num_classes",)),),
    "dynamic_stitch": ((0, ("indices",)),),
    "compat.v1.setdiff1d": ((0, ("x",)), (1, ("y",))),
    "signal.frame": ((1, ("frame_length",)), (2, ("frame_step",))),
    "signal.stft": ((1, ("frame_length",)), (2, ("frame_step",))),
    "space_to_batch": ((1, ("block_shape",)), (2, ("paddings",))),
    "broadcast_dynamic_shape": ((0, ("shape_x",)), (1, ("shape_y",))),
    "math.approx_max_k": ((1, ("k",)),),
    "math.approx_min_k": ((1, ("k",)),),
    "random.stateless_parameterized_truncated_normal": ((0, ("shape",)),),
    "sparse.eye": ((0, ("num_rows",)), (1, ("num_columns",))),
    **{f"experimental.numpy.{name}": ((0, ("shape",)),) for name in ("ones", "zeros", "empty", "full", "random.random")},
    **{f"experimental.numpy.{name}": ((1, ("shape",)),) for name in ("reshape", "broadcast_to")},
    **{
        f"experimental.numpy.{name}": ((0, ("N",)), (1, ("M",)))
        for name in ("eye", "identity", "tri", "diag_indices", "arange")
    },
    "experimental.numpy.tile": ((1, ("reps",)),),
    "experimental.numpy.repeat": ((1, ("repeats",)),),
    "experimental.numpy.linspace": ((2, ("num",)),),
    "experimental.numpy.vander": ((1, ("N",)),),
    "experimental.numpy.transpose": ((1, ("axes",)),),
    "keras.ops.arange": ((0, ("start",)), (1, ("stop",)), (2, ("step",))),
    "keras.ops.zeros": ((0, ("shape",)),),
    "keras.ops.ones": ((0, ("shape",)),),
    "keras.ops.full": ((0, ("shape",)),),
    "keras.ops.tile": ((1, ("repeats",)),),
    "keras.ops.repeat": ((1, ("repeats",)),),
    "keras.ops.reshape": ((1, ("newshape",)),),
    "keras.ops.broadcast_to": ((1, ("shape",)),),
    "keras.ops.one_hot": ((1, ("num_classes",)),),
    "keras.ops.linspace": ((2, ("num",)),),
    "keras.ops.empty": ((0, ("shape",)),),
    "keras.ops.identity": ((0, ("n",)),),
    "keras.ops.eye": ((0, ("N",)), (1, ("M",))),
    "keras.ops.tri": ((0, ("N",)), (1, ("M",))),
    "keras.ops.multi_hot": ((1, ("num_classes",)),),
    **{f"keras.ops.{name}": ((0, ("x",)),) for name in ("bartlett", "blackman", "hamming", "hanning", "kaiser")},
    **{f"keras.ops.{name}": ((1, ("indices_or_sections",)),) for name in ("split", "hsplit", "vsplit")},
    **{f"keras.random.{name}": ((0, ("shape",)),) for name in ("normal", "uniform", "truncated_normal", "randint")},
}
"""Function -> the arguments that must be known while XLA compiles, each as its position and keywords. Measured by lowering each
from tensor specs, without values, with TensorFlow 2.21."""


def family(short: str) -> str | None:
    """What keeps a function from being compiled: host, string, lookup, segment, sparse, or kernel. None: nothing that is
    known without its arguments."""
    if short in HOST_NAMES or (
        short.startswith(HOST) and not short.startswith("io.gfile") and short.rpartition(".")[2].islower()
    ):
        return "host"
    if short.startswith("strings."):
        return "string"
    if short.startswith(LOOKUP):
        return "lookup"
    if short in SEGMENT or short.startswith("sets."):
        return "segment"
    if short in SPARSE_FAILING:
        return "sparse"
    if missing(short):
        return "kernel"
    return None


def missing(short: str) -> list[str]:
    """The operators of a function that XLA compiles on no device and in no version known here."""
    if short in EITHER:
        return [EITHER[short]]
    name = short.removeprefix("raw_ops.")
    operators = [name] if name != short else OPERATORS.get(short, "").split()
    return [op for op in operators if op not in HARMLESS and not any(op in table for table in KERNELS.values())]


REAL_ONLY = {
    "linalg.inv": "MatrixInverse",
    "linalg.solve": "MatrixSolve",
    "linalg.expm": "MatrixSolve",
    "linalg.svd": "Svd",
    "linalg.pinv": "Svd",
    "linalg.tridiagonal_matmul": "TridiagonalMatMul",
}
"""Functions that XLA compiles for real numbers alone -> the operator that is to blame."""


EITHER = {
    "nn.fractional_max_pool": "FractionalMaxPool",
    "nn.fractional_avg_pool": "FractionalAvgPool",
    "image.draw_bounding_boxes": "DrawBoundingBoxesV2",
    "nn.isotonic_regression": "IsotonicRegression",
}
"""Functions that choose between operators none of which has a kernel."""

KERAS = {
    "keras.ops.det": "MatrixDeterminant",
    "keras.ops.slogdet": "LogMatrixDeterminant",
    "keras.ops.lu_factor": "Lu",
    "keras.ops.eig": "Eig",
    "keras.ops.i0": "BesselI0",
    "keras.ops.ctc_decode": "CTCGreedyDecoder",
    "keras.ops.image.affine_transform": "ImageProjectiveTransformV3",
    "keras.ops.image.perspective_transform": "ImageProjectiveTransformV3",
    "keras.random.gamma": "StatelessRandomGammaV3",
    "keras.random.beta": "StatelessRandomGammaV3",
    "keras.random.binomial": "StatelessRandomBinomial",
}
"""Functions of Keras, and the operator without a kernel that each runs on TensorFlow (Keras 3.15)."""

KERAS_EAGER = frozenset({"keras.ops.isin", "keras.ops.kron", "keras.ops.corrcoef"})
"""Functions of Keras that ask a tensor for its value where TensorFlow is the backend, so that they cannot be traced (3.15)."""

HARMLESS = frozenset({"Placeholder", "PlaceholderWithDefault", "Assert", "MutexLock", "NoOp"})
