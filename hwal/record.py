"""Record: the base of every frozen value that hwal passes along, prints as JSON and reads back.

The types of the fields decide how JSON is read: str, int, float, bool, None, Any, Literal, unions, `tuple[T, ...]`,
fixed tuples, `Mapping[str, T]` and other Records. A field whose JSON name is a Python keyword names it in its
metadata: `field(metadata={"json": "class"})`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from functools import cache, partial
from math import isfinite
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from hwal.errors import RecordError, nearest

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    # Record has __eq__, __hash__ and __repr__ once for all: compiling them anew for each class is half of what a class costs.
    dataclass = partial(dataclasses.dataclass, eq=False, repr=False)

T = TypeVar("T")


class FrozenMapping(Mapping[str, T]):
    """A copy of a mapping that cannot be changed, and that hashes and pickles as the values around it do."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, T]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> T:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items))  # values may be JSON, lists among it

    def __repr__(self) -> str:
        return repr(self._items)


class Record:
    """Inherit, and decorate with this module's `@dataclass(frozen=True)`. Mappings are copied and made read-only."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, dict):
                object.__setattr__(self, field.name, FrozenMapping(value))

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return f"{type(self).__qualname__}({', '.join(f'{field.name}={getattr(self, field.name)!r}' for field in fields)})"

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in dataclasses.fields(self))  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, field.name)) for name, field in _fields(type(self)).items()}

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def to_ascii(self) -> bytes:
        """As to_json, for files between processes: a path may hold what is no text, and a full disk may cut a letter."""
        return json.dumps(self.to_dict(), allow_nan=False).encode("ascii")

    @classmethod
    def from_dict(cls, data: Any, where: str = "$") -> Self:
        """The value that `data` (as json.loads gives it) describes.

        Raises RecordError naming the path inside the document when a key is unknown or missing or a type is wrong.
        """
        if not isinstance(data, Mapping):
            raise _mismatch(where, f"an object ({cls.__name__})", data)
        fields, hints = _fields(cls), _hints(cls)  # type: ignore[arg-type]  # mypy doubts that a class is hashable
        for key in data:
            if key not in fields:
                near = nearest(str(key), fields)
                raise RecordError(
                    f"unknown key {key!r} in {cls.__name__}",
                    where=where,
                    hint=f"did you mean {near!r}?" if near else None,
                )
        values = {}
        for name, field in fields.items():
            if name in data:
                values[field.name] = _typed(hints[field.name], data[name], f"{where}.{name}")
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise RecordError(f"key {name!r} is missing in {cls.__name__}", where=where)
        return cls(**values)

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "$") -> Self:
        """As from_dict; `where` names the source (a file, a variable) in messages."""
        return cls.from_dict(parse_json(text, where), where)


def parse_json(text: str | bytes, where: str) -> Any:
    """json.loads with a RecordError that names the source, line and column."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}", where=where) from None


def _fields(cls: type) -> Mapping[str, dataclasses.Field[Any]]:
    """JSON name -> field, in the order of declaration."""
    return {field.metadata.get("json", field.name): field for field in dataclasses.fields(cls)}


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _mismatch(where: str, expected: str, value: Any) -> RecordError:
    shown = json.dumps(value, default=repr)
    return RecordError(f"expected {expected}, got {shown if len(shown) <= 60 else shown[:57] + '...'}", where=where)


def _typed(kind: Any, value: Any, where: str) -> Any:
    """`value` as the type annotation `kind` wants it, or a RecordError."""
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        return _member(get_args(kind), value, where)
    if origin is Literal:
        if value not in get_args(kind):
            raise _mismatch(where, "one of " + ", ".join(map(repr, get_args(kind))), value)
        return value
    if origin is tuple:
        return _tuple(get_args(kind), value, where)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _mismatch(where, "an object", value)
        return {str(key): _typed(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Record):
        return kind.from_dict(value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is NoneType or kind in (str, int, float, bool):
        if type(value) is not kind:
            raise _mismatch(where, "null" if kind is NoneType else kind.__name__, value)
        if kind is float and not isfinite(value):
            raise _mismatch(where, "a finite number", value)
        return value
    raise TypeError(f"Record cannot read a field of type {kind!r}")


def _member(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """The first member of a union that fits; with one candidate besides None, its own message is the better one."""
    if value is None and NoneType in kinds:
        return None
    candidates = [kind for kind in kinds if kind is not NoneType]
    if len(candidates) == 1:
        return _typed(candidates[0], value, where)
    for kind in candidates:
        try:
            return _typed(kind, value, where)
        except RecordError:
            continue
    raise _mismatch(where, " or ".join(getattr(kind, "__name__", str(kind)) for kind in candidates), value)


def _tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _mismatch(where, "a list", value)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise _mismatch(where, f"a list of {len(kinds)}", value)
    return tuple(_typed(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True)))
