"""A graph before it is a snapshot, and what is refused of it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.edges import Edges
from handler.graph.features import Features
from handler.graph.ids import IntIds, NodeIds, RangeIds, StrIds

_SHOWN_IDS = 5


class Split(enum.IntEnum):
    """What a node is used for in training; the values of a snapshot's `split` array."""

    NONE = 0
    TRAIN = 1
    VAL = 2
    TEST = 3


@dataclass(frozen=True)
class GraphArrays:
    """A graph before it is a snapshot.

    Args:
        name: what people call it.
        edges: between node indices; they may be larger than memory.
        num_nodes: nodes are 0 to num_nodes - 1.
        ids: int64 [num_nodes], or as many strings, or both with their index; without it the ids are the
            node indices.
        features: [num_nodes, feature_dim], or none.
        label: int64 [num_nodes], -1 where unknown, or none.
        label_names: a name per class, or none to call class c "c".
        split: uint8 [num_nodes] of `Split`, or none.
    """

    name: str
    edges: Edges
    num_nodes: int
    ids: NDArray[np.int64] | Sequence[str] | NodeIds | None = None
    features: Features | None = None
    label: NDArray[np.int64] | None = None
    label_names: tuple[str, ...] | None = None
    split: NDArray[np.uint8] | None = None


def index_ids(graph: GraphArrays) -> NodeIds:
    ids = graph.ids
    if graph.num_nodes < 1:
        raise GraphInputError("the graph has no nodes")
    if ids is None:
        return RangeIds(graph.num_nodes)
    if len(ids) != graph.num_nodes:
        raise GraphInputError(f"ids has {len(ids)} entries for {graph.num_nodes} nodes")
    if not isinstance(ids, np.ndarray | Sequence):
        return ids
    if not isinstance(ids, np.ndarray) or ids.dtype.kind == "U":
        return StrIds.build([str(node_id) for node_id in ids])
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or int(ids.max()) > np.iinfo(np.int64).max:
        raise GraphInputError(
            f"node ids must be strings or 64-bit integers [num_nodes], but are {ids.dtype} {list(ids.shape)}"
        )
    if np.array_equal(ids, np.arange(graph.num_nodes)):
        return RangeIds(graph.num_nodes)
    return IntIds.build(ids.astype(np.int64))


def check_nodes(graph: GraphArrays, ids: NodeIds) -> None:
    nodes = graph.num_nodes
    _check_features(graph, ids)
    rows = {"label": graph.label, "split": graph.split}
    for name, values in rows.items():
        if values is not None and len(values) != nodes:
            raise GraphInputError(f"{name} has {len(values)} entries for {nodes} nodes")
    if graph.label is not None:
        _check_labels(graph.label, graph.label_names)


def _check_labels(label: NDArray[Any], names: tuple[str, ...] | None) -> None:
    if label.ndim != 1 or not np.issubdtype(label.dtype, np.integer):
        raise GraphInputError(
            f"classes must be integers [num_nodes], but are {label.dtype} {list(label.shape)}"
        )
    lowest, highest = int(label.min()), int(label.max())
    if lowest < -1 or highest < 0:
        raise GraphInputError(
            f"classes must be 0 or more, or -1 where unknown, but run from {lowest} to {highest}"
        )
    if names is not None and highest >= len(names):
        raise GraphInputError(f"classes run to {highest}, but there are {len(names)} class names")


def _check_features(graph: GraphArrays, ids: NodeIds) -> None:
    if graph.features is None:
        return
    if graph.features.shape[0] != graph.num_nodes:
        raise GraphInputError(f"the features have {graph.features.shape[0]} rows for {graph.num_nodes} nodes")
    if graph.features.dtype not in (np.float32, np.float16):
        raise GraphInputError(f"features must be float32 or float16, but are {graph.features.dtype}")
    bad = graph.features.non_finite_rows()
    if len(bad):
        raise GraphInputError(f"the features of {_some_nodes(bad, ids)} hold NaN or infinity")


def empty_features(graph: GraphArrays, ids: NodeIds) -> tuple[int, tuple[int | str, ...]]:
    if graph.features is None:
        return 0, ()
    empty = graph.features.empty_rows()
    return len(empty), tuple(ids.id_of(empty[:_SHOWN_IDS]))


def _some_nodes(index: NDArray[np.int64], ids: NodeIds) -> str:
    """A count of nodes with the ids of the first few."""
    shown = ", ".join(repr(node_id) for node_id in ids.id_of(index[:_SHOWN_IDS]))
    more = ", ..." if len(index) > _SHOWN_IDS else ""
    return f"{len(index)} node{'s' if len(index) != 1 else ''} ({shown}{more})"
