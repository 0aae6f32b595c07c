"""Mutations of one kind, ready to be written as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

Kind = Literal["add_nodes", "set_features", "remove_edges", "add_edges"]
KINDS: tuple[Kind, ...] = (
    "add_nodes",
    "set_features",
    "remove_edges",
    "add_edges",
)  # as a request applies them
_IDS = ("node_id", "source", "target")


class Rows(Protocol):
    """Mutations of one kind."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Self:
        """Some of them."""
        ...

    def to_json(self) -> bytes:
        """All of them, as an array."""
        ...

    def ids(self, row: int) -> list[int | str]:
        """The nodes that one of them names."""
        ...


class ColumnRows:
    """Rows of a table.

    Args:
        columns: values by the name that they have in JSON, all of one length: numbers, strings, or rows of a
            matrix of float32.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def part(self, start: int, stop: int) -> ColumnRows:
        return ColumnRows({name: values[start:stop] for name, values in self._columns.items()})

    def to_json(self) -> bytes:
        names = tuple(self._columns)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*self._columns.values(), strict=True)]
        return orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)

    def ids(self, row: int) -> list[int | str]:
        return [self._columns[name][row] for name in _IDS if name in self._columns]


class ObjectRows:
    """Rows that were JSON already.

    Args:
        objects: decoded, of a type that knows how it is written.
    """

    def __init__(self, objects: Sequence[msgspec.Struct]) -> None:
        self._objects = objects

    def __len__(self) -> int:
        return len(self._objects)

    def part(self, start: int, stop: int) -> ObjectRows:
        return ObjectRows(self._objects[start:stop])

    def to_json(self) -> bytes:
        return msgspec.json.encode(self._objects)

    def ids(self, row: int) -> list[int | str]:
        return [getattr(self._objects[row], name) for name in _IDS if hasattr(self._objects[row], name)]


@dataclass(frozen=True)
class Segment:
    """Mutations of one kind that follow each other in a file.

    Args:
        kind: what they do.
        rows: what they say.
        lines: int64 [num_rows], ascending, the line of each in a file of text, its row in a Parquet file.
        parts: int64 [num_rows], how many mutations stand before it in its line.
    """

    kind: Kind
    rows: Rows
    lines: NDArray[np.int64]
    parts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lines)

    def part(self, start: int, stop: int) -> Segment:
        """Some of them."""
        return Segment(self.kind, self.rows.part(start, stop), self.lines[start:stop], self.parts[start:stop])
