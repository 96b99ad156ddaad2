"""Steps: the code of a torch script that runs once for each training step, and which names in it are tensors."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from hwal.lint.arguments import PLAIN_NAME, PLAIN_TYPES, TENSOR_TYPES, used_as_plain
from hwal.lint.assumed import MODEL
from hwal.lint.project import Project
from hwal.lint.seldom import seldom
from hwal.lint.source import Function, Source

HOST_READS = frozenset(
    {"item", "tolist", "numpy", "size", "dim", "numel", "ndimension", "stride", "is_contiguous", "get_device"}
)
PLAIN_ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "layout", "training", "names"})
PLAIN_TORCH = (
    "torch.device", "torch.no_grad", "torch.inference_mode", "torch.manual_seed", "torch.load", "torch.save", "torch.cuda",
    "torch.utils", "torch.optim", "torch.nn.Module", "torch.set_", "torch.get_", "torch.is_", "torch.distributed",
    "torch.backends", "torch.autocast", "torch.amp", "torch.compile", "torch.jit", "torch.profiler", "torch.float",
    "torch.int", "torch.bfloat16", "torch.Size", "torch.Generator", "torch.mps", "torch.xpu", "torch.finfo", "torch.iinfo",
    "torch.enable_grad", "torch.hub",
)  # fmt: skip
STEPPING = ("backward", "optimizer_step")
CUTTING = ("step", "optimizer_step", "mark_step", "sync")
BUILTINS = frozenset(
    {"len", "range", "print", "int", "float", "bool", "str", "isinstance", "enumerate", "zip", "tqdm", "type", "list", "max"}
)


class Steps:
    """The training loops of a file (the innermost loops around `.backward()`), the functions that they call, and every
    module's `forward`."""

    def __init__(self, source: Source, project: Project) -> None:
        self._source = source
        self._project = project
        self._tensors: dict[Function | None, set[str]] = {}
        self._conditions: dict[Function | None, dict[str, ast.expr]] = {}
        self.loops = list(dict.fromkeys(self._training_loops()))
        self._functions = self._step_functions()

    def nodes(self) -> Iterator[tuple[ast.AST, Function | None]]:
        """Every node of step code, with the function it stands in."""
        seen: set[int] = set()
        for loop, function in self.loops:
            for statement in loop.body:
                for node in ast.walk(statement):
                    if id(node) not in seen:
                        seen.add(id(node))
                        yield node, function
        for function in self._functions:
            body = function.node.body
            parts: list[ast.stmt] | list[ast.expr] = body if isinstance(body, list) else [body]
            for part in parts:
                for node in ast.walk(part):
                    if id(node) not in seen:
                        seen.add(id(node))
                        yield node, function

    def _training_loops(self) -> Iterator[tuple[ast.For | ast.While, Function | None]]:
        parents = self._source.parents
        for call, function in self._source.calls:
            target = self._project.called(call.func, function, self._source)
            steps = isinstance(target, Function) and target.module is self._source and _backward(target)
            if steps or (isinstance(call.func, ast.Attribute) and call.func.attr in STEPPING):
                current = parents.get(call)
                while current is not None and not isinstance(current, ast.FunctionDef | ast.Lambda | ast.ClassDef):
                    if isinstance(current, ast.For | ast.While):
                        yield current, function
                        break
                    current = parents.get(current)

    def _step_functions(self) -> list[Function]:
        found: dict[Function, None] = {}
        for function in self._source.functions:
            module = function.class_ is not None and function.name == "forward" and self._is_module(function)
            if module or (_backward(function) and not any(outer is function for _, outer in self.loops)):
                found[function] = None
        for loop, around in self.loops:
            for statement in loop.body:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Call):
                        target = self._project.called(node.func, around, self._source)
                        if not isinstance(target, Function) or target.module is not self._source:
                            continue
                        if _backward(target) or not self.seldom(node, around):
                            found[target] = None
        return list(found)

    def _is_module(self, function: Function) -> bool:
        class_ = function.class_
        return class_ is not None and any(name.startswith("torch.nn.") for name in self._project.ancestors(class_))

    def seldom(self, node: ast.AST, function: Function | None) -> bool:
        """Whether a node of step code runs every so many steps only, or apart from the step."""
        if function not in self._conditions:
            self._conditions[function] = _conditions(self._source.tree if function is None else function.node)
        return seldom(node, self._source, self.counters(node), self._conditions[function])

    def moving(self, node: ast.AST) -> set[str]:
        """The Python numbers that are others in the next graph: the counters of the innermost loop around a node that has the
        step or the mark. A loop of backward passes within a step is unrolled in one graph, and is the same in each."""
        parents, stepping = self._source.parents, False
        current = parents.get(node)
        while current is not None and not isinstance(current, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            if isinstance(current, ast.For | ast.While):
                stepping = stepping or any(loop is current for loop, _ in self.loops)
                if stepping and self._cuts(current):
                    return _counting(current)
            current = parents.get(current)
        return self.counters(node)

    def _cuts(self, loop: ast.For | ast.While) -> bool:
        """Whether a loop takes optimizer steps, or marks the ends of graphs, itself or in a function of this file."""
        inside = {id(node) for node in ast.walk(loop)}
        for call, function in self._source.calls:
            if id(call) in inside:
                target = self._project.called(call.func, function, self._source)
                within = target.calls if isinstance(target, Function) else ()
                if any(isinstance(c.func, ast.Attribute) and c.func.attr in CUTTING for c in [call, *within]):
                    return True
        return False

    def counters(self, node: ast.AST) -> set[str]:
        """The Python numbers that count the loops around a node: of `range` and `enumerate`, and those that `+= 1` moves."""
        found: set[str] = set()
        for loop, _ in self.loops:
            if any(inner is node for inner in ast.walk(loop)):
                found |= _counting(loop)
        return found

    def is_tensor(self, node: ast.expr, function: Function | None) -> bool:
        """Whether an expression is a tensor, as far as can be told."""
        if function not in self._tensors:
            self._tensors[function] = set()
            for _ in range(2):  # names that are used before the line that says what they are
                self._collect(function)
        return self._tensor(node, self._tensors[function])

    def _collect(self, function: Function | None) -> None:
        names = self._tensors[function]
        if function is not None and function.name == "forward":
            names |= {parameter.arg for parameter in function.parameters[1:] if _given_tensor(parameter, function)}
        body = self._source.tree.body if function is None else function.node.body
        if not isinstance(body, list):  # a lambda's
            return
        loops = {id(loop) for loop, _ in self.loops}
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Assign):
                    if self._tensor(node.value, names):
                        for target in node.targets:
                            names |= _bound(target)
                elif isinstance(node, ast.AugAssign | ast.AnnAssign) and isinstance(node.target, ast.Name):
                    if node.value is not None and self._tensor(node.value, names):
                        names.add(node.target.id)
                elif isinstance(node, ast.For) and id(node) in loops and not self._counted(node):
                    target = node.target
                    if (
                        isinstance(node.iter, ast.Call)
                        and getattr(node.iter.func, "id", "") == "enumerate"
                        and isinstance(target, ast.Tuple)
                    ):
                        target = target.elts[-1]
                    names |= _bound(target)
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
                    loss = node.args[0] if node.args else node.func.value  # rt.backward(loss), loss.backward()
                    if isinstance(loss, ast.Name):
                        names.add(loss.id)
                elif isinstance(node, ast.Call):
                    names |= self._walked(node, names)

    def _walked(self, call: ast.Call, names: set[str]) -> set[str]:
        """The parameters of a lambda that is called, at once, with tensors or with the parts of some: `map(lambda t: …, x)`."""
        given = [*call.args, *(k.value for k in call.keywords)]
        lambdas = [node for node in [call.func, *given] if isinstance(node, ast.Lambda)]
        parts = [part for node in given for part in (node.elts if isinstance(node, ast.List | ast.Tuple) else [node])]
        if not lambdas or not any(self._tensor(part, names) for part in parts):
            return set()
        return {parameter.arg for node in lambdas for parameter in node.args.args}

    def _counted(self, node: ast.For) -> bool:
        call = node.iter
        return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"

    def _tensor(self, node: ast.expr, names: set[str]) -> bool:
        if isinstance(node, ast.Name):
            return node.id in names
        if isinstance(node, ast.Attribute):
            return node.attr not in PLAIN_ATTRIBUTES and self._tensor(node.value, names)
        if isinstance(node, ast.Subscript):
            return self._tensor(node.value, names)
        if isinstance(node, ast.BinOp):
            return self._tensor(node.left, names) or self._tensor(node.right, names)
        if isinstance(node, ast.UnaryOp):
            return self._tensor(node.operand, names)
        if isinstance(node, ast.Compare):
            if isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn):
                return False
            return self._tensor(node.left, names) or any(self._tensor(c, names) for c in node.comparators)
        if isinstance(node, ast.BoolOp):
            return any(self._tensor(v, names) for v in node.values)
        if isinstance(node, ast.Call):
            return self._call(node, names)
        return False

    def _call(self, node: ast.Call, names: set[str]) -> bool:
        dotted = self._source.names.resolve(node.func)
        if dotted is not None:
            if dotted.startswith(("torch.nn.functional.", "torch.nn.utils.clip_grad", "torch.nn.utils.get_total_norm")):
                return True
            return (
                dotted.startswith("torch.")
                and not dotted.startswith(PLAIN_TORCH)
                and not dotted[6:7].isupper()
                and ".nn." not in dotted
            )
        given = [*node.args, *(k.value for k in node.keywords)]
        if isinstance(node.func, ast.Attribute):
            if self._tensor(node.func.value, names):
                return node.func.attr not in HOST_READS
            root = node.func.value
            while isinstance(root, ast.Attribute):
                root = root.value
            own = isinstance(node.func.value, ast.Name) and node.func.value.id == "self"
            if own or (isinstance(root, ast.Name) and MODEL.match(root.id)):  # model.head(x)
                return any(self._tensor(arg, names) for arg in given)
            return False
        if isinstance(node.func, ast.Name) and node.func.id not in BUILTINS:
            return any(self._tensor(arg.value if isinstance(arg, ast.Starred) else arg, names) for arg in given)
        return False


def _given_tensor(parameter: ast.arg, function: Function) -> bool:
    """Whether a parameter of `forward` is a tensor: its annotation, default, name and use do not say that it is Python's."""
    name, default = parameter.arg, function.defaults().get(parameter.arg)
    written = ast.unparse(parameter.annotation) if parameter.annotation is not None else ""
    if TENSOR_TYPES.search(written):
        return True
    option = isinstance(default, ast.Constant) and default.value is not None
    return not (option or PLAIN_TYPES.search(written) or PLAIN_NAME.match(name) or name in used_as_plain(function))


def _counting(loop: ast.For | ast.While) -> set[str]:
    """The Python numbers that count a loop."""
    found = {name for statement in loop.body if (name := _moved(statement))}
    call = loop.iter if isinstance(loop, ast.For) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and isinstance(loop, ast.For):
        target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
        if call.func.id in ("range", "enumerate") and isinstance(target, ast.Name):
            found.add(target.id)
    return found


def _moved(statement: ast.stmt) -> str:
    """The name that `step += 1` moves."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add) and isinstance(statement.target, ast.Name):
        by = statement.value
        return statement.target.id if isinstance(by, ast.Constant) and type(by.value) is int else ""
    return ""


def _conditions(scope: ast.AST) -> dict[str, ast.expr]:
    """Name -> its expression, of the names that a scope assigns once."""
    nodes = list(ast.walk(scope))
    stores = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    assigned = (node for node in nodes if isinstance(node, ast.Assign))
    named = ((target.id, node.value) for node in assigned for target in node.targets if isinstance(target, ast.Name))
    return {name: value for name, value in named if stores[name] == 1}


def _backward(function: Function) -> bool:
    return any(isinstance(call.func, ast.Attribute) and call.func.attr in STEPPING for call in function.calls)


def _bound(target: ast.expr) -> set[str]:
    return (
        {node.id for node in ast.walk(target) if isinstance(node, ast.Name)} if not isinstance(target, ast.Subscript) else set()
    )
