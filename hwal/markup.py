"""XML whose elements know their line, so that an error in a file can name it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hwal.errors import RecordError


@dataclass(frozen=True, eq=False)
class Element:
    """One element: its name, attributes, line, children in order, and the text directly inside it."""

    name: str
    line: int
    attributes: Mapping[str, str]
    children: list[Element] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts).strip()

    def walk(self) -> Iterator[Element]:
        """This element and all below it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.walk()

    def find(self, path: str) -> str | None:
        """The text of the first element at `a/b/c` below this one; None where there is none."""
        here: Element | None = self
        for name in path.split("/"):
            here = next((child for child in here.children if child.name == name), None) if here else None
        return here.text if here else None


def parse(text: str, where: str) -> Element:
    """The root element. Raises RecordError with the line where the text is no XML."""
    from xml.parsers import expat

    parser = expat.ParserCreate()
    stack: list[Element] = []
    roots: list[Element] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        element = Element(name, parser.CurrentLineNumber, attributes)
        (stack[-1].children if stack else roots).append(element)
        stack.append(element)

    def end(_: str) -> None:
        stack.pop()

    def data(piece: str) -> None:
        if stack:
            stack[-1].parts.append(piece)

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, data
    try:
        parser.Parse(text.lstrip().encode(), True)
    except expat.ExpatError as error:
        line = text[: len(text) - len(text.lstrip())].count("\n") + error.lineno
        raise RecordError(
            f"not XML from here on: {expat.errors.messages[error.code]}",
            where=f"{where}, line {line}",
            hint="capture it again: the file is cut off or was edited",
        ) from None
    return roots[0]
