"""What a table is, whatever file it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.progress import Progress

_SHOWN_COLUMNS = 20
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Chunk:
    """Some rows of a table, as they were read.

    Args:
        columns: Arrow arrays by column name: binary from text, else whatever the file has.
        lines: int64 [num_rows], the line of each row in a file of text, its number in a Parquet file;
            both from 1.
        broken: line and problem of what could not even be cut into columns.
    """

    columns: dict[str, pa.Array]
    lines: NDArray[np.int64]
    broken: tuple[tuple[int, str], ...] = ()

    def __len__(self) -> int:
        return len(self.lines)


class Table(Protocol):
    """A table whose columns are known, and whose rows are read when they are asked for."""

    path: Path
    columns: tuple[str, ...]

    def chunks(self, columns: Sequence[str], progress: Progress) -> Iterator[Chunk]:
        """The rows, in the file's order, as far as they are in `columns`."""
        ...


def place_of(table: Table, column: str) -> int:
    """Where a column stands, from 0; a `GraphInputError` that names the columns there are, if it does not."""
    count = table.columns.count(column)
    if count == 1:
        return table.columns.index(column)
    if count > 1:
        raise GraphInputError(f"{table.path}: has {count} columns {column!r}")
    names = [shortened(name) for name in table.columns]
    more = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
    raise GraphInputError(
        f"{table.path}: has no column {column!r}; its columns are {', '.join(names[:_SHOWN_COLUMNS])}{more}"
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever goes wrong with a file is told as a `GraphInputError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise GraphInputError(f"{path}: no such file") from None
    except OSError as error:
        raise GraphInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except pa.ArrowException as error:
        raise GraphInputError(f"{path}: cannot be read: {error}") from None


def shortened(value: object) -> str:
    """A value for an error message."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
