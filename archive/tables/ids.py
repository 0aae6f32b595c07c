"""Node ids of either type, as the columns of tables have them and as node indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from archive.tables.arrow import plain, python_of, utf8_of
from archive.tables.bad_rows import RowCheck
from archive.tables.columns import as_int64, as_text, plain_integers
from archive.tables.table import Chunk, shortened
from handler.graph.growing_ids import GrowingIntIds, GrowingStrIds
from handler.graph.ids import NodeIds

IdType = Literal["auto", "int", "str"]

_ADVICE = " (for ids that are text, use --ids str)"


class TableIds(Protocol):
    """The distinct ids so far, numbered in the order in which they came.

    Args:
        note: why they are not what most of them look like, if so.
    """

    note: str | None

    def __len__(self) -> int: ...

    def read(self, check: RowCheck, column: str) -> Any:
        """The ids in a column, one per row of the chunk; rows that have none are refused."""
        ...

    def add(self, ids: Any, keep: NDArray[np.bool_]) -> NDArray[np.int64]:
        """int64 [keep.sum()]: the indices of the ids where `keep` is set, new ones included."""
        ...

    def find(self, ids: Any) -> NDArray[np.int64]:
        """int64 [len(ids)]: the indices of the ids, -1 for those that are not there."""
        ...

    def shown(self, ids: Any, row: int) -> str:
        """One of the ids for an error message."""
        ...

    def ascending(self) -> NDArray[np.int64]:
        """int64 [num_nodes]: the indices by ascending id."""
        ...

    def finish(self, order: NDArray[np.int64] | None) -> NodeIds:
        """The ids as a graph's, in an order of indices or as they came."""
        ...


class IntTableIds:
    """64-bit integers."""

    note: str | None = None

    def __init__(self) -> None:
        self._growing = GrowingIntIds()
        self.finish = self._growing.finish

    def __len__(self) -> int:
        return len(self._growing)

    def read(self, check: RowCheck, column: str) -> NDArray[np.int64]:
        return as_int64(check, column, _ADVICE)

    def add(self, ids: NDArray[np.int64], keep: NDArray[np.bool_]) -> NDArray[np.int64]:
        return self._growing.add(ids[keep])

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._growing.find(ids)

    def shown(self, ids: NDArray[np.int64], row: int) -> str:
        return str(ids[row])

    def ascending(self) -> NDArray[np.int64]:
        return np.argsort(self._growing.ids)


class StrTableIds:
    """Strings, which ascend by their UTF-8, which is to say by code point."""

    def __init__(self, note: str | None = None) -> None:
        self.note = note
        self._growing = GrowingStrIds()
        self.finish = self._growing.finish

    def __len__(self) -> int:
        return len(self._growing)

    def read(self, check: RowCheck, column: str) -> pa.Array:
        return as_text(check, column)

    def add(self, ids: pa.Array, keep: NDArray[np.bool_]) -> NDArray[np.int64]:
        return self._growing.add(*utf8_of(ids if keep.all() else ids.filter(pa.array(keep))))

    def find(self, ids: pa.Array) -> NDArray[np.int64]:
        return self._growing.find(*utf8_of(ids))

    def shown(self, ids: pa.Array, row: int) -> str:
        return shortened(ids[row].as_py())

    def ascending(self) -> NDArray[np.int64]:
        buffers = [None, pa.py_buffer(self._growing.offsets), pa.py_buffer(self._growing.data)]
        ids = pa.Array.from_buffers(pa.large_binary(), len(self), buffers)
        order: NDArray[np.int64] = pc.sort_indices(ids).to_numpy().astype(np.int64)
        return order


def ids_for(
    id_type: IdType, path: Path, chunks: Iterator[Chunk], columns: Sequence[str]
) -> tuple[TableIds, Iterator[Chunk]]:
    """No ids yet, of a type that the first rows decide unless the user does; and the chunks, all of them.

    Args:
        id_type: `auto` takes integers if all ids in the first chunk with rows are, written plainly.
        path: the table's file, for the note.
        chunks: of the table.
        columns: where the ids are.
    """
    if id_type != "auto":
        return IntTableIds() if id_type == "int" else StrTableIds(), chunks
    seen: list[Chunk] = []
    for chunk in chunks:
        seen.append(chunk)
        if len(chunk):
            break
    return _ids_like(path, seen[-1], columns) if seen else IntTableIds(), chain(seen, chunks)


def _ids_like(path: Path, chunk: Chunk, columns: Sequence[str]) -> TableIds:
    is_integer = np.stack([plain_integers(chunk.columns[column]) for column in columns], axis=1)
    num_others = int(np.count_nonzero(~is_integer))
    if num_others == 0:
        return IntTableIds()
    if 2 * num_others >= is_integer.size:
        return StrTableIds()
    row, place = divmod(int(np.argmin(is_integer)), len(columns))
    value = shortened(python_of(plain(chunk.columns[columns[place]])[row]))
    return StrTableIds(
        f"{path}:{chunk.lines[row]}: column {columns[place]!r}: {value} is not a plain integer, so node ids"
        f" are text, though {is_integer.size - num_others} of the first {is_integer.size} look like integers"
        " (for integers, use --ids int)"
    )
