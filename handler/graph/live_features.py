"""The features of a snapshot's nodes, with those that were set later and those of new nodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from handler.graph.features import Features

_FREE_NODES = 1 << 16
_FIRST_ROWS = 1 << 8
_ZEROS = 1  # the row, counted from 1, of nodes that came without features


class FeatureChanges(NamedTuple):
    """By which mutation the features of each node were set last, as kernels take it; 0: by the build.

    Args:
        row_of: int32 [node_capacity], which of `row_number` is a node's, counted from 1; 0: `base_number`.
            Empty where nothing was set since the snapshot.
        row_number: int64 [num_rows].
        base_number: int64 [num_nodes of the snapshot]; empty where nothing was set before the snapshot.
    """

    row_of: NDArray[np.int32]
    row_number: NDArray[np.int64]
    base_number: NDArray[np.int64]


def snapshot_changes(feature_seq: NDArray[np.int64] | None) -> FeatureChanges:
    """The changes of a snapshot's features; none where there is no `feature_seq`."""
    numbers = np.empty(0, dtype=np.int64) if feature_seq is None else np.asarray(feature_seq)[:]
    numbers.flags.writeable = False  # as of what is mapped: kernels are compiled once for these types
    return FeatureChanges(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64), numbers)


class LiveFeatures:
    """Features that change; read like those of a snapshot.

    Args:
        base: of the snapshot; stay as they are.
        feature_seq: int64 [num_nodes], by which mutation each node's were set last before the snapshot.
    """

    def __init__(self, base: Features, feature_seq: NDArray[np.int64] | None = None) -> None:
        self._base = base
        self._base_changes = snapshot_changes(feature_seq)
        self._row_number = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self._num_nodes = base.shape[0]
        # Zeros that nobody has touched take no memory.
        self._row_of = np.zeros(self._num_nodes + _FREE_NODES, dtype=np.int32)
        self._rows = np.zeros((_FIRST_ROWS, base.shape[1]), dtype=np.float32)
        self._num_rows = 1

    @property
    def shape(self) -> tuple[int, int]:
        """(num_nodes, feature_dim)."""
        return self._num_nodes, self._base.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the snapshot's values; later ones are rounded to it."""
        return self._base.dtype

    @property
    def nbytes(self) -> int:
        """The memory that changes take."""
        return self._rows.nbytes

    @property
    def changes(self) -> FeatureChanges:
        """Which features were set by which mutation; holds until the next change."""
        if self._num_rows == 1:
            return self._base_changes
        return self._base_changes._replace(row_of=self._row_of, row_number=self._row_number)

    def change_numbers(self) -> NDArray[np.int64]:
        """int64 [num_nodes]: by which mutation each node's features were set last; a copy."""
        return self.change_numbers_of(np.arange(self._num_nodes))

    def change_numbers_of(self, node: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [len(node)]: the same of some nodes."""
        base = self._base_changes.base_number
        numbers = np.zeros(len(node), dtype=np.int64)
        known = np.flatnonzero(node < len(base))
        numbers[known] = base[node[known]]
        row = self._row_of[node]
        later = np.flatnonzero(row)
        numbers[later] = self._row_number[row[later] - 1]
        return numbers

    def add_nodes(self, count: int) -> None:
        """There are more nodes, of which all features are zero."""
        first = self._num_nodes
        self._num_nodes += count
        if self._num_nodes > len(self._row_of):
            larger = np.zeros(2 * self._num_nodes, dtype=np.int32)
            larger[: len(self._row_of)] = self._row_of
            self._row_of = larger
        self._row_of[first : self._num_nodes] = _ZEROS

    def drop_last(self, had_features: bool) -> None:
        """Take back the node that was added last, and its features if they were set last."""
        self._num_nodes -= 1
        self._row_of[self._num_nodes] = 0
        self._num_rows -= had_features

    def set(self, node: NDArray[np.int64], x: NDArray[np.floating], seq: int) -> None:
        """Set the features of nodes; of repeats the last one counts.

        Args:
            node: int64 [num_set].
            x: float [num_set, feature_dim].
            seq: the mutation that does so, or the last of a record that does.
        """
        new = np.unique(node[self._row_of[node] <= _ZEROS])
        needed = self._num_rows + len(new)
        if needed > len(self._rows):
            larger = np.zeros((max(2 * len(self._rows), needed), self._rows.shape[1]), dtype=np.float32)
            larger[: self._num_rows] = self._rows[: self._num_rows]
            self._rows = larger
            self._row_number = np.concatenate(
                [self._row_number, np.zeros(len(larger) - len(self._row_number), dtype=np.int64)]
            )
        self._row_of[new] = np.arange(self._num_rows, needed) + 1
        self._num_rows = needed
        self._rows[self._row_of[node] - 1] = x.astype(self.dtype)
        self._row_number[self._row_of[node] - 1] = seq

    def changed(self, node: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Bool [len(node)]: whose features are not those of the snapshot."""
        return self._row_of[node] > 0

    def gather(self, index: NDArray[np.int64], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """See `Features`."""
        row = self._row_of[index]
        later = np.flatnonzero(row)
        if not len(later):
            return self._base.gather(index, out)
        if out is None:
            out = np.empty((len(index), self.shape[1]), dtype=np.float32)
        if len(later) < len(index):
            # What is not of the snapshot is read from node 0 first: cheaper than to read around it.
            self._base.gather(np.where(row > 0, 0, index), out)
        out[later] = self._rows[row[later] - 1]
        return out
