"""The names of the files that a dataset reads: followed in its graph, from the operations that read, back to constants.

Where a name is put together its beginning is followed, which says whose file it is. A name that comes of anything else than is
known here (of a file of names, say) is not followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

READERS = frozenset({
    "TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "CSVDataset", "ReadFile", "MatchingFiles",
    "MatchingFilesDataset", "LoadDataset", "CacheDataset",
})  # fmt: skip
PLACES = {"CacheDataset": 1}  # which of a reader's inputs is the name, where it is not the first
FIRST = frozenset({  # what they give is their first input, or begins with it, or is of its elements
    "Identity", "Reshape", "ExpandDims", "Squeeze", "StridedSlice", "Slice", "Gather", "RandomShuffle", "Add", "StringJoin",
    "RegexReplace", "StaticRegexReplace",
})  # fmt: skip
ALL = frozenset({"Pack", "Concat"})
SOURCES = frozenset({"TensorDataset", "TensorSliceDataset"})
MAPS = frozenset({"MapDataset", "ParallelMapDataset"})
FLAT_MAPS = frozenset({
    "FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDataset", "LegacyParallelInterleaveDataset",
})  # fmt: skip
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


def file_names(graph: Any) -> Iterator[str]:
    """Those that can be known of a dataset's GraphDef, or their beginnings."""
    flow = _Flow(graph)
    for scope, nodes in flow.nodes.items():
        for node in nodes.values():
            kind = _kind(node)
            if kind in READERS:
                yield from flow.texts(scope, node.input[PLACES.get(kind, 0)])


class _Flow:
    """Where values come from. A scope is a function, by its name, or the graph, ""."""

    def __init__(self, graph: Any) -> None:
        self.functions = {one.signature.name: one for one in graph.library.function}
        self.nodes = {"": {node.name: node for node in graph.node}}
        self.nodes |= {name: {node.name: node for node in one.node_def} for name, one in self.functions.items()}
        self._callers: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        for scope, nodes in self.nodes.items():
            for node in nodes.values():
                if _kind(node) in MAPS | FLAT_MAPS | CALLS:
                    self._callers[node.attr["f"].func.name].append((scope, node))
        self._seen: set[tuple[str, str, int | None]] = set()

    def texts(self, scope: str, value: str, part: int | None = None) -> Iterator[str]:
        """The constants that a value is, or begins with, each once. `part`: of a dataset's elements, that one."""
        if (scope, value, part) in self._seen:
            return
        self._seen.add((scope, value, part))
        name = value.partition(":")[0]
        node = self.nodes[scope].get(name)
        if node is None:
            sources = self._arguments(scope, name, part)
        else:
            if node.op == "Const" and node.attr["dtype"].type == tf.string.as_datatype_enum:
                tensor = tf.io.parse_tensor(node.attr["value"].tensor.SerializeToString(), tf.string)
                yield from (text.decode(errors="replace") for text in tf.reshape(tensor, [-1]).numpy())
            sources = self._inputs(scope, node, part)
        for source in sources:
            yield from self.texts(*source)

    def _inputs(self, scope: str, node: Any, part: int | None) -> Iterator[tuple[str, str, int | None]]:
        """What a node's value comes from."""
        kind = _kind(node)
        if part is None:
            inputs = node.input[:1] if kind in FIRST else node.input if kind in ALL else ()
            yield from ((scope, one, None) for one in inputs)
        elif kind in SOURCES:
            yield scope, node.input[part], None
        elif kind == "ZipDataset":  # its parts are those of its inputs, one behind the other
            for one in node.input:
                width = _width(self._node(scope, one))
                if width is None:
                    return
                if part < width:
                    yield scope, one, part
                    return
                part -= width
        elif kind == "ConcatenateDataset":
            yield from ((scope, one, part) for one in node.input[:2])
        elif kind in MAPS or kind in FLAT_MAPS:
            function = self.functions[node.attr["f"].func.name]
            results = [function.ret[argument.name] for argument in function.signature.output_arg]
            yield function.signature.name, *((results[part], None) if kind in MAPS else (results[0], part))
        elif kind == "Identity" or (kind.endswith("Dataset") and "f" not in node.attr and node.input):
            within = self._node(scope, node.input[0])
            if kind == "Identity" or (within is not None and _width(node) == _width(within)):  # shuffled, batched …: the same
                yield scope, node.input[0], part

    def _arguments(self, scope: str, name: str, part: int | None) -> Iterator[tuple[str, str, int | None]]:
        """What a function's argument comes from: a dataset's elements, and then what was captured."""
        place = [argument.name for argument in self.functions[scope].signature.input_arg].index(name)
        for caller, node in self._callers[scope]:
            width = 0 if node.op in CALLS else _width(self._node(caller, node.input[0]))
            if width is None:
                continue
            if place < width:
                yield caller, node.input[0], place
            else:
                yield caller, node.input[place - width + (node.op not in CALLS)], part

    def _node(self, scope: str, value: str) -> Any:
        return self.nodes[scope].get(value.partition(":")[0])


def _kind(node: Any) -> str:
    """An operation's name without its version: AddV2 -> Add."""
    return str(node.op).rstrip("0123456789").removesuffix("V") if node.op[-1].isdigit() else str(node.op)


def _width(node: Any) -> int | None:
    """How many parts a dataset's elements have; None of what is none, or is not known."""
    if node is None:
        return None
    types = node.attr["Toutput_types" if "Toutput_types" in node.attr else "output_types"].list.type
    return len(types) or None
