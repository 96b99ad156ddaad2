"""Semantics: what calls of TensorFlow, keras.ops and Python's builtins return, as far as the analyses care."""

from __future__ import annotations

from collections.abc import Mapping

from hwal.lint import shapes
from hwal.lint.values import (
    ARGUMENT,
    ARRAY,
    DECIDED,
    LAYER,
    LIST,
    NOTHING,
    NUMPY,
    PLAIN,
    PYTHON,
    RAGGED,
    SPARSE,
    TENSOR,
    TENSORS,
    UNKNOWN,
    Value,
    all_given,
    constant,
    holds_tensor,
    tensor_like,
)

LISTS = frozenset(
    {
        "unstack", "split", "meshgrid", "dynamic_partition", "unique", "unique_with_counts", "nn.moments", "nn.top_k",
        "linalg.svd", "linalg.qr", "linalg.eigh", "linalg.eig", "linalg.lu", "linalg.slogdet", "nn.max_pool_with_argmax",
        "gradients", "shape_n", "nn.weighted_moments", "nn.fractional_max_pool", "nn.fractional_avg_pool",
        "nn.ctc_unique_labels", "compat.v1.setdiff1d", "image.combined_non_max_suppression",
        "image.non_max_suppression_padded", "nn.ctc_greedy_decoder", "clip_by_global_norm", "nn.fused_batch_norm",
        "math.approx_max_k", "math.approx_min_k",
}
)  # fmt: skip
"""Functions that return a Python list or tuple of tensors."""

SHAPES = frozenset({"shape", "rank", "size", "shape_n"})
"""Functions whose result XLA knows while it compiles."""

BOUNDED = frozenset(
    {
        "boolean_mask", "unique", "dynamic_partition", "sparse.from_dense", "nn.ctc_unique_labels", "image.non_max_suppression",
        "experimental.numpy.nonzero",
    }
)  # fmt: skip
"""Functions whose result's shape depends on data, within a bound."""

REDUCTIONS = ("reduce_", "math.reduce_", "argmax", "argmin", "math.count_nonzero", "norm", "add_n")

PYTHON_RESULTS = frozenset(
    {
        "is_tensor", "executing_eagerly", "get_static_value", "name_scope", "device", "init_scope", "control_dependencies",
        "get_logger", "as_dtype", "type_spec_from_value", "no_gradient", "custom_gradient", "function", "group", "no_op",
        "print", "inside_function", "get_current_name_scope", "broadcast_static_shape", "is_symbolic_tensor",
        "variable_creator_scope", "register_tensor_conversion_function", "recompute_grad", "load_library", "load_op_library",
        "distribute.get_replica_context", "distribute.get_strategy", "distribute.has_strategy",
        "autograph.experimental.set_loop_options",
}
)  # fmt: skip
PYTHON_MODULES = (
    "config.", "distribute.", "data.", "saved_model", "io.gfile", "summary.", "train.", "profiler", "test.", "dtypes", "tpu.",
    "autograph.", "types.", "version", "sysconfig", "experimental.dispatch", "optimizers", "errors.", "estimator",
    "compat.as_", "compat.v1.flags", "compat.v1.app", "logging", "compat.v1.logging", "lookup.", "nest.", "initializers",
    "debugging.",
)  # fmt: skip
BOOLEAN = frozenset(
    {
        "equal", "not_equal", "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_or", "logical_not",
        "logical_xor", "reduce_any", "reduce_all", "math.is_nan", "math.is_inf", "math.is_finite", "sequence_mask",
        "math.equal", "math.logical_and", "math.logical_or", "math.logical_not", "math.greater", "math.less", "math.in_top_k",
        "math.is_strictly_increasing",
}
)  # fmt: skip
SINGLE = frozenset(
    {
        "cast", "reshape", "transpose", "reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "constant", "zeros", "ones",
        "range", "fill", "concat", "stack", "where", "squeeze", "expand_dims", "abs", "square", "exp", "sqrt", "matmul",
        "one_hot", "gather", "zeros_like", "ones_like", "identity", "convert_to_tensor", "random.normal", "random.uniform",
        "nn.relu", "nn.softmax", "argmax", "argmin", "sort", "argsort", "boolean_mask", "shape", "size", "rank", "tile",
        "pad", "math.log", "sigmoid", "tanh", "clip_by_value", "maximum", "minimum", "linspace", "linalg.diag", "eye",
        "cumsum", "reverse", "roll", "slice", "gather_nd",
}
)  # fmt: skip
"""Functions that return one tensor, so that unpacking their result is an iteration over it."""


OPAQUE = frozenset(
    {
        "cumsum", "math.cumprod", "math.cumulative_logsumexp", "matmul", "einsum", "tensordot", "linalg.qr", "linalg.svd",
        "linalg.cholesky", "linalg.eigh", "linalg.logdet", "linalg.inv", "linalg.solve", "linalg.matvec", "linalg.trace",
        "scatter_nd", "tensor_scatter_nd_update", "tensor_scatter_nd_add", "math.unsorted_segment_sum",
        "math.unsorted_segment_max", "math.unsorted_segment_mean", "nn.conv1d", "nn.conv2d", "nn.convolution", "boolean_mask",
}
)  # fmt: skip
"""Functions whose result not even XLA:CPU, which knows its arguments, can work out while it compiles; random ones besides."""


def tensorflow_call(short: str, args: list[Value], kwargs: Mapping[str, Value]) -> Value:
    """The value of a call of `tensorflow.<short>`."""
    made = _made(short, args, kwargs)
    if made is not None:
        return made
    values = [*args, *kwargs.values()]
    result = tensor_like(values)
    if short in OPAQUE or short.startswith("random."):
        result = result._replace(data=result.data or short.startswith("random."))
        result = result._replace(loop=result.loop or result.data)
    if short in ("nn.ctc_greedy_decoder", "nn.ctc_beam_search_decoder"):
        return Value(PYTHON, items=(result._replace(kind=PYTHON, what=TENSORS), result))
    if short in LISTS:
        unknown = short in BOUNDED
        data, bounded, loop = result.data or unknown, result.bounded or unknown, result.loop or unknown
        return result._replace(kind=PYTHON, what=TENSORS, data=data, bounded=bounded, loop=loop)
    result = result._replace(shape=shapes.of_call(short, args, kwargs), what="single" if short in SINGLE else None)
    if short in BOUNDED or (short == "where" and len(values) == 1):
        return result._replace(
            bounded=True, data=True, loop=True, dtype=args[0].dtype if args and short == "boolean_mask" else None
        )
    if short.startswith(REDUCTIONS) and len(args) < 2 and "axis" not in kwargs:
        result = result._replace(bounded=False)
    if short == "cast" and args and args[0].known:
        result = result._replace(known=True, const=args[0].const)
    return result._replace(dtype=_result_dtype(short, args, kwargs))


def _made(short: str, args: list[Value], kwargs: Mapping[str, Value]) -> Value | None:
    """The value of a call that makes something else than a tensor out of tensors; None for any other."""
    last = short.rpartition(".")[2]
    if short == "constant" or short == "convert_to_tensor":
        source = args[0] if args else kwargs.get("value", PLAIN)
        dtype = _dtype(args[1] if len(args) > 1 else kwargs.get("dtype"))
        if source.kind in (UNKNOWN, NUMPY) and not source.data:
            return Value(TENSOR, dtype=dtype, what="single")
        shape = source.shape if source.is_tensor else shapes.of_literal(source) if short == "constant" and not kwargs else None
        result = tensor_like([source], shape, dtype or source.dtype)
        return result._replace(what="single", known=source.known, const=source.const)
    if short == "Variable":
        first = args[0] if args else kwargs.get("initial_value", PLAIN)
        shape = first.shape if first.is_tensor else shapes.of_literal(first)
        if "shape" in kwargs:  # it wins over what the variable begins with
            shape = shapes.written(kwargs["shape"])
        return Value(TENSOR, data=True, what="variable", shape=shape, dtype=_dtype(kwargs.get("dtype")))
    if short.startswith(("RaggedTensor.", "ragged.")):
        return tensor_like(args)._replace(kind=RAGGED, data=True)
    if short in ("SparseTensor", "sparse.SparseTensor", "IndexedSlices"):
        return tensor_like([*args, *kwargs.values()])._replace(kind=SPARSE)
    if short.startswith("sparse.") and last not in DENSE:
        return tensor_like([*args, *kwargs.values()])._replace(kind=SPARSE, bounded=short in BOUNDED)
    if short.startswith("sets."):
        return tensor_like(args)._replace(kind=SPARSE)
    if short == "TensorArray":
        growing = kwargs.get("dynamic_size", args[2] if len(args) > 2 else PLAIN)
        size = kwargs.get("size", args[1] if len(args) > 1 else PLAIN)
        empty = (size.known and size.const == 0) or (size is PLAIN and growing.known)
        return Value(ARRAY, what="growing" if growing.known and growing.const is True and empty else None)
    if short in PYTHON_RESULTS or short.startswith(PYTHON_MODULES) or (last[:1].isupper() and not short.startswith("raw_ops.")):
        return PLAIN._replace(what=f"tensorflow.{short}")
    if short in SHAPES:
        # a shape is a constant to XLA, even that of a tensor whose length is bounded
        return Value(TENSOR, dtype="int32", what="single", shape=shapes.of_call(short, args, kwargs))
    return None


DENSE = ("to_dense", "sparse_dense_matmul", "reduce_sum", "reduce_max", "map_values")
"""Functions of tf.sparse whose result is no sparse tensor."""


def _result_dtype(short: str, args: list[Value], kwargs: Mapping[str, Value]) -> str | None:
    """The dtype of what a function returns, None where it is not known."""
    first = args[0] if args else PLAIN
    if short in ("cast", "zeros", "ones", "fill", "range", "one_hot", "saturate_cast"):
        position = {"cast": 1, "saturate_cast": 1, "zeros": 1, "ones": 1}.get(short, 99)
        given = _dtype(args[position] if position < len(args) else kwargs.get("dtype"))
        if given or short in ("cast", "fill", "saturate_cast"):
            return given
        if short == "range":
            return next((v.dtype for v in args if v.dtype), "int32" if all(_whole(v) for v in args) else None)
        return "float32"
    if short in BOOLEAN:
        return "bool"
    if short == "complex" or short.startswith(("signal.fft", "signal.ifft", "signal.rfft", "signal.stft")):
        return "complex64"
    if short in ("abs", "math.real", "math.imag", "math.angle", "signal.irfft") and (first.dtype or "").startswith("complex"):
        return None
    if short in ("argmax", "argmin"):
        return _dtype(kwargs["output_type"]) if "output_type" in kwargs else "int64"
    values = [*args, *kwargs.values()]
    return values[0].dtype if values and len(values) <= 2 else None


def keras_ops_call(short: str, args: list[Value], kwargs: Mapping[str, Value]) -> Value:
    """The value of a call of `keras.ops.<short>`; its names are NumPy's."""
    if short in ("shape", "ndim", "is_tensor", "dtype", "standardize_dtype"):
        return PLAIN
    if short == "size":
        return Value(TENSOR)
    if short == "convert_to_numpy":
        return Value(NUMPY, data=True)
    result = tensor_like([*args, *kwargs.values()])
    if short in (
        "split",
        "unstack",
        "meshgrid",
        "qr",
        "svd",
        "eigh",
        "top_k",
        "moments",
        "slogdet",
        "lu_factor",
        "array_split",
    ):
        return result._replace(kind=PYTHON, what=TENSORS)
    if short in ("nonzero", "unique", "argwhere") or (short == "where" and len(args) + len(kwargs) == 1):
        return result._replace(bounded=True, data=True, loop=True)
    if short in (
        "equal",
        "greater",
        "less",
        "any",
        "all",
        "isnan",
        "logical_and",
        "logical_or",
        "logical_not",
        "isinf",
        "isfinite",
    ):
        result = result._replace(dtype="bool")
    return result


def builtin_call(name: str, args: list[Value], autograph: bool) -> Value | None:
    """The value of a call of a builtin, None for a name that is none. AutoGraph converts some of them."""
    first = args[0] if args else NOTHING
    if name in ("int", "float") and first.is_tensor and autograph:
        return first._replace(dtype="int32" if name == "int" else "float32", what="single")
    if name == "range":
        return (
            Value(TENSOR, *first[1:4], what="range")
            if autograph and any(a.is_tensor for a in args)
            else Value(PYTHON, what="range")
        )
    if name == "abs":
        return first
    if name in ("sum", "max", "min"):
        inner = [item for value in args for item in (value.items or (value,))]
        return tensor_like(inner)._replace(given=all_given(inner)) if any(map(holds_tensor, inner)) else PLAIN
    if name in ("list", "tuple", "sorted", "reversed") and first.what in (TENSORS, LIST):
        return first
    if name in ("list", "tuple", "sorted", "reversed"):
        return Value(PYTHON, data=first.data, items=first.items)
    if name == "isinstance" and len(args) == 2:
        return _is_instance(first, args[1])
    if name in PYTHON_BUILTINS:
        return PLAIN
    return None


OTHER_TENSORS = {
    "tensorflow.SparseTensor": SPARSE,
    "tensorflow.sparse.SparseTensor": SPARSE,
    "tensorflow.RaggedTensor": RAGGED,
    "tensorflow.IndexedSlices": None,
}
"""Classes that no dense tensor is of."""


def _is_instance(value: Value, class_: Value) -> Value:
    """Whether a tensor is a sparse or a ragged one: `known` where it is a dense one, or one of the class that is asked for."""
    if class_.what not in OTHER_TENSORS or not value.is_tensor or value.what == ARGUMENT:
        return PLAIN
    return constant(value.kind == OTHER_TENSORS[class_.what])._replace(what=DECIDED)


PYTHON_BUILTINS = frozenset(
    {
        "len", "isinstance", "issubclass", "hasattr", "callable", "str", "repr", "type", "id", "print", "dict", "set",
        "frozenset", "int", "float", "bool", "round", "divmod", "pow", "hash", "format", "ord", "chr", "open", "vars", "dir",
        "iter", "any", "all", "bytes", "complex", "object", "slice", "input",
}
)  # fmt: skip


TENSOR_METHODS = frozenset(
    {"read_value", "value", "sparse_read", "gather_nd", "__getitem__", "eval", "consumers", "experimental_ref"}
)


def method_call(method: str, owner: Value, args: list[Value]) -> Value:
    """The value of a method called on something that is no function of the files given."""
    if owner.kind == ARRAY:
        if method in ("unstack", "scatter", "split"):
            return owner._replace(what=None)
        return owner if method in ("write", "mark_used", "identity") else Value(TENSOR, data=True)
    if owner.kind in (TENSOR, SPARSE, RAGGED):
        if method in ("get_shape", "set_shape", "is_compatible_with"):
            return Value(PYTHON, what="shape", shape=owner.shape)
        if method == "numpy":
            return Value(NUMPY, data=True)
        if method in ("row_lengths", "values", "to_tensor", "flat_values", "bounding_shape", "value_rowids"):
            return Value(TENSOR, data=True, bounded=method == "to_tensor")
        if method in TENSOR_METHODS or method.startswith(("assign", "scatter_", "with_")):
            return tensor_like([owner, *args])._replace(kind=owner.kind if method.startswith("with_") else TENSOR)
        return NOTHING
    if owner.kind == LAYER:
        return tensor_like(args)._replace(data=True)
    if owner.kind == PYTHON:
        return PLAIN
    return NOTHING


def _dtype(value: Value | None) -> str | None:
    """The dtype that an argument names."""
    if value is None:
        return None
    if value.known and isinstance(value.const, str):
        return value.const
    return value.what[6:] if value.what and value.what.startswith("dtype.") else None


def _whole(value: Value) -> bool:
    return value.known and isinstance(value.const, int)
