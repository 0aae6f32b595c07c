"""PyG's `GraphStore` and `FeatureStore` over a snapshot, which they read and never change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from handler.errors import GraphInputError
from handler.graph.arrays import Split
from handler.graph.snapshot import Snapshot

_READ_ONLY = "a snapshot is read-only: build another one to change it"


class SnapshotGraphStore(GraphStore):  # type: ignore[misc]  # PyG has no types
    """The edges, as PyG's CSC: `row` int64 [num_edges] and `colptr` int64 [num_nodes + 1].

    `coo()` and `csr()` convert, as PyG's base class does. What is returned is a copy in memory, unlike the
    mapped files that `SnapshotSampler` reads.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self._adjacency = snapshot.adjacency

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        size = (self._adjacency.num_nodes, self._adjacency.num_nodes)
        return [EdgeAttr(None, EdgeLayout.CSC, is_sorted=True, size=size)]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        if edge_attr.edge_type is not None or edge_attr.layout != EdgeLayout.CSC:
            return None
        row = self._adjacency.indices.astype(np.int64)
        return torch.from_numpy(row), torch.from_numpy(self._adjacency.indptr.astype(np.int64))

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> NoReturn:
        raise GraphInputError(_READ_ONLY)

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> NoReturn:
        raise GraphInputError(_READ_ONLY)


@dataclass(frozen=True)
class _Column:
    """One named tensor: `shape`, and what reads the rows at int64 positions."""

    shape: tuple[int, ...]
    rows: Callable[[NDArray[np.int64]], NDArray[Any]]


class SnapshotFeatureStore(FeatureStore):  # type: ignore[misc]  # PyG has no types
    """What is known of nodes and edges, read row by row from the mapped files.

    Of nodes, as far as the graph has them: `x` float32 [num_nodes, feature_dim], `y` int64 [num_nodes], and
    `train_mask`, `val_mask`, `test_mask` bool [num_nodes]. Of edges, by their position in the snapshot:
    `edge_weight` float32 [num_edges], `edge_time` float64 [num_edges] and `edge_attr` float32
    [num_edges, edge_dim]; `get_all_tensor_attrs` leaves these out, for PyG's loaders ask for all that it
    names by node.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self._of_nodes = _node_columns(snapshot)
        self._columns = self._of_nodes | _edge_columns(snapshot)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(None, name) for name in self._of_nodes]

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        column = self._column(attr)
        values = column.rows(_positions(attr.index, column.shape[0]))
        return torch.from_numpy(np.ascontiguousarray(values))

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        shape = self._column(attr).shape
        return len(_positions(attr.index, shape[0])), *shape[1:]

    def _column(self, attr: TensorAttr) -> _Column:
        column = self._columns.get(attr.attr_name)
        if column is None or attr.group_name is not None:
            known = ", ".join(f"`{name}`" for name in self._columns)
            raise KeyError(f"no tensor `{attr.attr_name}` in group {attr.group_name!r}; without one: {known}")
        return column

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> NoReturn:
        raise GraphInputError(_READ_ONLY)

    def _remove_tensor(self, attr: TensorAttr) -> NoReturn:
        raise GraphInputError(_READ_ONLY)


def _node_columns(snapshot: Snapshot) -> dict[str, _Column]:
    columns = {}
    if snapshot.features is not None:
        columns["x"] = _Column(snapshot.features.shape, snapshot.features.gather)
    if snapshot.label is not None:
        columns["y"] = _of_array(snapshot.label)
    if snapshot.split is not None:
        for part in (Split.TRAIN, Split.VAL, Split.TEST):
            columns[f"{part.name.lower()}_mask"] = _mask(snapshot.split, part)
    return columns


def _edge_columns(snapshot: Snapshot) -> dict[str, _Column]:
    adjacency = snapshot.adjacency
    arrays = {
        "edge_weight": adjacency.edge_weight,
        "edge_time": adjacency.edge_time,
        "edge_attr": adjacency.edge_attr,
    }
    return {name: _of_array(values) for name, values in arrays.items() if values is not None}


def _of_array(values: NDArray[Any]) -> _Column:
    dtype = np.float32 if values.dtype == np.float16 else values.dtype  # as the sampler gives them
    return _Column(values.shape, lambda index: np.take(values, index, axis=0).astype(dtype, copy=False))


def _mask(split: NDArray[np.uint8], part: Split) -> _Column:
    return _Column(split.shape, lambda index: np.take(split, index) == part)


def _positions(index: Any, count: int) -> NDArray[np.int64]:
    """Any index that PyG allows, as int64 positions."""
    if index is None:
        return np.arange(count)
    if isinstance(index, slice):
        return np.arange(*index.indices(count))
    values = np.atleast_1d(np.asarray(index))
    if values.dtype == np.bool_:
        if len(values) != count:
            raise IndexError(f"a mask of {len(values)} for {count} rows")
        return np.flatnonzero(values)
    positions = values.astype(np.int64)
    if len(positions) and not -count <= positions.min() <= positions.max() < count:
        raise IndexError(f"rows {positions.min()} to {positions.max()} of {count}")
    return np.where(positions < 0, positions + count, positions)
