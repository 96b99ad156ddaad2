"""Arguments: what the parameters of a root are, which nobody in sight passes: tensors, or plain Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from hwal.lint.context import FUNCTION, Context, Site
from hwal.lint.eager import dtype_of, tensor_made
from hwal.lint.source import Function
from hwal.lint.values import ARGUMENT, NOTHING, PLAIN, TENSOR, Value, join

PLAIN_NAME = re.compile(
    r"^(?:training|is_training|train|trainable|mode|axis|axes|name|dtype|scope|reuse|verbose|debug|method|reduction|units|dim|dims|height|width|channels|"
    r"config|cfg|params|hparams|hps|args|options|flags|fn|func|function|callback|model|net|network|encoder|decoder|generator|"
    r"discriminator|optimizer|opt|layer|layers|module|strategy|metric|metrics|loss_fn|criterion|epsilon|eps|rate|alpha|beta|"
    r"gamma|temperature|num\w+|n_(?:heads|layers|classes|steps|epochs)|\w*_(?:size|dim|dims|rate|name|path|fn|dir|axis|axes|config|type|"
    r"mode|units|classes|heads|layers|model|optimizer|loss_fn|length|stride|step|width|height|count|format|spec|layout)|"
    r"use_\w+|is_\w+|bool_\w+|return_\w+|self|cls|\w*shape|strides|padding|kernel|pool_size|[A-Z])$"
)
STRUCTURE_NAME = re.compile(
    r"^(?:\w*[a-rt-z0-9]s|data|size|batch|features|state|sample|pair|elems|items|\w+_(?:list|tuple|dict))$"
)
"""Names of arguments that are as often a list of tensors as a tensor."""

PLAIN_TYPES = re.compile(r"\b(?:int|float|bool|str|bytes|Callable|Optimizer|Model|Layer|Module|Sequence\[int\]|DType|type)\b")
TENSOR_TYPES = re.compile(r"\b(?:Tensor|TensorLike|ndarray|Array|Variable|EagerTensor)\b")
RAGGED_TYPES = re.compile(r"\bRagged(?:Tensor)?\b")
SPARSE_TYPES = re.compile(r"\bSparseTensor\b")

INPUT = Value(TENSOR, data=True)


def root_arguments(function: Function, context: Context, sites: Iterable[Site]) -> dict[str, Value]:
    """Parameter name -> its value. A parameter is Python where its annotation, its default, its name, or a literal that some
    call passes says so."""
    found: dict[str, Value] = {}
    specs = signature(function)
    defaults = function.defaults()
    args = function.node.args
    parameters = function.parameters
    if function.bound and parameters:
        found[parameters[0].arg] = Value(what="self")
        parameters = parameters[1:]
    sites = list(sites)
    literals = passed_literals(parameters, sites) | used_as_plain(function)
    tensors = passed_tensors(parameters, sites)
    floats, whole, spread = used_as_float(function), used_as_tensor(function), used_as_structure(function)
    for index, parameter in enumerate([*parameters, *args.kwonlyargs]):
        name = parameter.arg
        if specs is not None and index < len(specs):
            found[name] = specs[index]
        elif name in tensors and name not in literals:
            found[name] = tensors[name]
        else:
            found[name] = _guess(name, parameter.annotation, defaults.get(name), name in literals, context)
            if found[name].is_tensor and name in whole:
                found[name] = found[name]._replace(what="single", given=False)
            elif found[name].is_tensor and name in spread:
                found[name] = found[name]._replace(what=ARGUMENT)
            if name in floats and found[name].is_tensor and found[name].dtype is None:
                found[name] = found[name]._replace(dtype="float32")
    if args.vararg:
        found[args.vararg.arg] = NOTHING
    if args.kwarg:
        found[args.kwarg.arg] = NOTHING
    return found


def _guess(name: str, annotation: ast.expr | None, default: ast.expr | None, literal: bool, context: Context) -> Value:
    if annotation is not None:
        text = ast.unparse(annotation)
        if RAGGED_TYPES.search(text):
            return Value("ragged", data=True)
        if SPARSE_TYPES.search(text):
            return Value("sparse", data=True)
        if TENSOR_TYPES.search(text):
            return NOTHING if "None" in text or "Optional" in text else INPUT
        if PLAIN_TYPES.search(text):
            return PLAIN
    if literal or PLAIN_NAME.match(name):
        return PLAIN
    if default is not None:
        # None stands for a tensor as often as for an option
        return NOTHING if isinstance(default, ast.Constant) and default.value is None else PLAIN
    return INPUT._replace(what=ARGUMENT if STRUCTURE_NAME.match(name) else None, given=True)


PLAIN_METHODS = frozenset(
    {"append", "extend", "items", "keys", "get", "pop", "update", "split", "startswith", "endswith", "lower", "format"}
)
SIZES_OF_NUMPY = frozenset(
    {"numpy.arange", "numpy.zeros", "numpy.ones", "numpy.eye", "numpy.linspace", "numpy.full", "numpy.float32"}
)
"""NumPy's functions whose arguments are sizes and numbers, not arrays."""

PLAIN_CLASSES = re.compile(r"\b(?:int|float|bool|str|list|tuple|dict|Sequence|Mapping|Iterable|Integral|Number)\b")


def used_as_plain(function: Function) -> set[str]:
    """The names that a function's body treats as what no tensor is: it calls them, asks whether they are a list, compares them
    with a string, or calls a method that lists, dicts and strings have."""
    found: set[str] = set()
    for call in function.calls:
        func = call.func
        if isinstance(func, ast.Name):
            found.add(func.id)
            asks = func.id == "isinstance" and len(call.args) == 2 and PLAIN_CLASSES.search(ast.unparse(call.args[1]))
            if (asks or _asks_dtype(call)) and isinstance(call.args[0], ast.Name):
                found.add(call.args[0].id)
        elif function.module.names.resolve(func) in SIZES_OF_NUMPY:
            found |= {arg.id for arg in call.args if isinstance(arg, ast.Name)}
        elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.attr in PLAIN_METHODS:
            found.add(func.value.id)
    if isinstance(function.node, ast.Lambda):
        return found
    for statement in function.node.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.comprehension) and {_name(node.target)} & found:
                found.add(_name(node.iter))  # its elements are asked what they are, so it is a list
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name):
                right = node.comparators[0]
                choices = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else [right]
                if any(isinstance(item, ast.Constant) and isinstance(item.value, str) for item in choices):
                    found.add(node.left.id)
    return found


def used_as_tensor(function: Function) -> set[str]:
    """The names that a function's body treats as one tensor, and no list of them, and that are never given another value:
    `x.shape`, `x[:, 0]`."""
    found: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(function.node):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        shaped = isinstance(node, ast.Attribute) and node.attr in ("shape", "dtype", "ndim")
        sliced = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple)
        if isinstance(node, ast.Attribute | ast.Subscript) and (shaped or sliced):
            found.add(_name(node.value))
    return found - bound


def used_as_structure(function: Function) -> set[str]:
    """The names that a function's body spreads, as lists and tuples are: `f(*rest)`."""
    starred = (node for node in ast.walk(function.node) if isinstance(node, ast.Starred))
    return {_name(node.value) for node in starred if isinstance(node.ctx, ast.Load)}


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _asks_dtype(call: ast.Call) -> bool:
    """`getattr(x, "dtype", type(x))`, which is asked of what may be a Python number."""
    return (
        isinstance(call.func, ast.Name)
        and call.func.id == "getattr"
        and len(call.args) == 3
        and isinstance(call.args[1], ast.Constant)
        and call.args[1].value in ("dtype", "shape")
    )


KEEPING = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "abs", "square", "norm", "sum", "mean", "max", "min")
"""Functions whose result has the dtype of what they are given."""


def used_as_float(function: Function) -> set[str]:
    """The parameters that meet a Python float, which an integer tensor could not, and that are never given another value."""
    found: set[str] = set()
    if isinstance(function.node, ast.Lambda):
        return found
    bound: set[str] = set()
    for statement in function.node.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            elif isinstance(node, ast.BinOp):
                found |= _meets_float(node.left, node.right)
            elif isinstance(node, ast.Compare) and len(node.comparators) == 1:
                found |= _meets_float(node.left, node.comparators[0])
    return found - bound


def _meets_float(left: ast.expr, right: ast.expr) -> set[str]:
    for number, other in ((left, right), (right, left)):
        if isinstance(number, ast.Constant) and isinstance(number.value, float):
            if (
                isinstance(other, ast.Call)
                and isinstance(other.func, ast.Attribute)
                and other.func.attr in KEEPING
                and other.args
            ):
                other = other.args[0]
            if isinstance(other, ast.Name):
                return {other.id}
    return set()


def passed_tensors(parameters: list[ast.arg], sites: Iterable[Site]) -> dict[str, Value]:
    """The parameters that every call in sight gives a tensor or an array, and what all of these have in common."""
    found: dict[str, Value | None] = {}
    for call, source in sites:
        given = dict(zip((p.arg for p in parameters), call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg}
        for name, node in given.items():
            value = tensor_made(node, source)
            old = found.get(name, value)
            found[name] = join(old, value) if old is not None and value is not None else None
    return {name: value for name, value in found.items() if value is not None}


def passed_literals(parameters: list[ast.arg], sites: Iterable[Site]) -> set[str]:
    """The parameters that some call gives a number, string, bool or None."""
    found = set()
    for call, _ in sites:
        for parameter, value in zip(parameters, call.args, strict=False):
            if isinstance(value, ast.Constant) or (isinstance(value, ast.UnaryOp) and isinstance(value.operand, ast.Constant)):
                found.add(parameter.arg)
        found |= {k.arg for k in call.keywords if k.arg and isinstance(k.value, ast.Constant)}
    return found


def signature(function: Function) -> list[Value] | None:
    """The tensors of `input_signature=[tf.TensorSpec(…), …]`, None where there is none or it is not written out."""
    for decorator in function.decorators:
        if isinstance(decorator, ast.Call) and function.module.names.resolve(decorator.func) == FUNCTION:
            for keyword in decorator.keywords:
                if keyword.arg == "input_signature" and isinstance(keyword.value, ast.List | ast.Tuple):
                    return [_spec(item, function) for item in keyword.value.elts]
    return None


def _spec(node: ast.expr, function: Function) -> Value:
    name = function.module.names.resolve(node.func) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or name is None:
        return INPUT
    if name == "tensorflow.RaggedTensorSpec":
        return Value("ragged", data=True)
    if name == "tensorflow.SparseTensorSpec":
        return Value("sparse", data=True)
    given = {k.arg: k.value for k in node.keywords} | dict(zip(("shape", "dtype"), node.args, strict=False))
    shape = given.get("shape")
    dims = None
    if isinstance(shape, ast.List | ast.Tuple):
        dims = tuple(d.value if isinstance(d, ast.Constant) and isinstance(d.value, int) else None for d in shape.elts)
    return Value(TENSOR, data=True, shape=dims, dtype=dtype_of(given.get("dtype"), function.module) or "float32")
