"""Columns that say what class a node has, or which part of the data it is in."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from archive.tables.bad_rows import RowCheck
from archive.tables.columns import as_text

_SPLITS = ["", "train", "val", "test"]  # the values of a snapshot's `split` array, by place


@dataclass(frozen=True)
class Labels:
    """Classes of nodes.

    Args:
        label: int64 [num_nodes], -1 where there is none.
        names: a name per class.
    """

    label: NDArray[np.int64]
    names: tuple[str, ...]


class LabelColumn:
    """Classes by name, numbered when all are known."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._code: dict[str, int] = {}
        self._codes: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]

    def read(self, check: RowCheck) -> pa.Array:
        """The names of all rows, "" where there is none."""
        return pc.utf8_trim_whitespace(as_text(check, self.column, may_be_empty=True))

    def append(self, names: pa.Array) -> None:
        """Some more nodes."""
        encoded = names.dictionary_encode()
        codes = [
            self._code.setdefault(name, len(self._code)) if name else -1
            for name in encoded.dictionary.to_pylist()
        ]
        self._codes.append(np.array(codes, dtype=np.int64)[encoded.indices.to_numpy()])

    def finish(self) -> Labels:
        """Classes by ascending name, or number where all names are integers."""
        are_ints = all(re.fullmatch(r"[+-]?[0-9]+", name) for name in self._code)
        names = sorted(self._code, key=(lambda name: (int(name), name)) if are_ints else None)
        klass = np.full(len(names) + 1, -1, dtype=np.int64)  # the last is that of code -1
        klass[[self._code[name] for name in names]] = np.arange(len(names))
        return Labels(klass[np.concatenate(self._codes)], tuple(names))


def as_split(check: RowCheck, column: str) -> NDArray[np.uint8]:
    """uint8 [num_rows] of `Split`, where rows that name none are refused."""
    text = pc.utf8_trim_whitespace(as_text(check, column, may_be_empty=True))
    place = pc.fill_null(pc.index_in(text, pa.array(_SPLITS, text.type)), len(_SPLITS)).to_numpy()
    check.refuse_value(place == len(_SPLITS), column, "is not train, val, test or empty")
    return np.asarray(place, dtype=np.uint8)
