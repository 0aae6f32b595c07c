"""Graphs that users bring or can start with, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.arrays import GraphArrays, Split
from handler.graph.edges import EdgeArrays, as_float
from handler.graph.features import CsrFeatures, DenseFeatures, Features

PLANETOID = ("cora", "citeseer", "pubmed")
DATASETS = ("digits", *PLANETOID)
_DIGITS_NEIGHBORS = 10
_MASKS = {"train_mask": Split.TRAIN, "val_mask": Split.VAL, "test_mask": Split.TEST}
_SPARSE = ("x_data", "x_indices", "x_indptr", "x_shape")
_USED = {
    "edge_index",
    "edge_weight",
    "edge_time",
    "edge_attr",
    "x",
    "y",
    "node_id",
    "class_names",
    *_MASKS,
    *_SPARSE,
}


def load_digits() -> GraphArrays:
    """scikit-learn's handwritten digits, each joined with the ten most alike.

    1,797 images of 8 x 8 pixels (0 to 1) in 10 classes; a link counts in both directions.
    """
    from sklearn.datasets import load_digits as load_images
    from sklearn.neighbors import kneighbors_graph

    images, digits = load_images(return_X_y=True)
    near = kneighbors_graph(images, _DIGITS_NEIGHBORS)
    both_ways = near.maximum(near.T).tocoo()
    label = digits.astype(np.int64)
    return GraphArrays(
        name="digits",
        edges=EdgeArrays(np.stack([both_ways.row, both_ways.col])),
        num_nodes=len(label),
        features=DenseFeatures((images / 16).astype(np.float32)),
        label=label,
        split=random_split(label, seed=0),
    )


def load_planetoid(name: str, folder: Path) -> GraphArrays:
    """Cora, Citeseer or Pubmed with the public split, downloaded to `folder` by PyG when missing."""
    from torch_geometric.datasets import Planetoid

    try:
        data = Planetoid(str(folder), name)[0]
    except Exception as error:  # PyG lets every error of its HTTP stack through
        raise GraphInputError(
            f"{name} is not in {folder} and cannot be downloaded: {type(error).__name__}: {error}"
        ) from error
    masks = {mask: data[mask].numpy() for mask in _MASKS}
    return GraphArrays(
        name=name,
        edges=EdgeArrays(data.edge_index.numpy()),
        num_nodes=data.num_nodes,
        features=DenseFeatures(data.x.numpy()),
        label=data.y.numpy(),
        split=_split_of(masks, data.num_nodes),
    )


def load_npz(
    path: Path, *, weight: str | None = None, time: str | None = None, edge_features: Sequence[str] = ()
) -> GraphArrays:
    """A graph from a `.npz` file of plain arrays.

    `edge_index` [2, num_edges] is required; `edge_weight` and `edge_time` [num_edges] and `edge_attr`
    [num_edges, edge_dim] belong to its columns. Features are `x` [num_nodes, feature_dim] or the CSR parts
    `x_data`, `x_indices`, `x_indptr` and `x_shape`. Ids are `node_id` (integers or strings), classes `y`
    with optional `class_names`, and the split `train_mask`, `val_mask` and `test_mask`.

    Args:
        weight, time: arrays to use as `edge_weight` and `edge_time`.
        edge_features: arrays [num_edges] or [num_edges, dim], which side by side are `edge_attr`.

    Raises:
        GraphInputError: the file holds no such graph; names the file.
    """
    renamed = {weight: "edge_weight", time: "edge_time"}
    try:
        # Opened here, because NumPy leaves a file that is no archive open.
        with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name in _USED}
            _check_named([weight, time, *edge_features], file.files)
            columns = {name: file[name] for name in edge_features}
            arrays |= {renamed[name]: file[name] for name in (weight, time) if name is not None}
    except FileNotFoundError:
        raise GraphInputError(f"{path}: no such file") from None
    except GraphInputError as error:
        raise GraphInputError(f"{path}: {error}") from None
    except Exception as error:  # noqa: BLE001 - zipfile, zlib and NumPy each raise their own
        raise GraphInputError(f"{path}: not a .npz file of plain arrays: {error}") from None
    if "edge_index" not in arrays:
        raise GraphInputError(f"{path}: has no array `edge_index`")
    try:
        if columns:
            arrays["edge_attr"] = np.column_stack(list(columns.values()))
        return from_arrays(path.stem, arrays)
    except (GraphInputError, ValueError, IndexError, TypeError) as error:
        raise GraphInputError(f"{path}: {error}") from None


def _check_named(wanted: Sequence[str | None], there: Sequence[str]) -> None:
    for name in wanted:
        if name is not None and name not in there:
            raise GraphInputError(f"has no array {name!r}, only {', '.join(there)}")


def from_arrays(name: str, arrays: dict[str, NDArray[Any]], num_nodes: int | None = None) -> GraphArrays:
    """A graph from arrays that are named and shaped as `load_npz` says.

    Args:
        num_nodes: where it is known; else the features, ids or classes tell, or at last the edges.

    Raises:
        GraphInputError: dtypes or shapes are wrong.
    """
    edges = EdgeArrays(
        arrays["edge_index"], arrays.get("edge_weight"), arrays.get("edge_time"), arrays.get("edge_attr")
    )
    features = _features_of(arrays)
    label = arrays.get("y")
    if num_nodes is None:
        num_nodes = _count_nodes(arrays["edge_index"], features, label, arrays.get("node_id"))
    class_names = arrays.get("class_names")
    masks = {mask: arrays[mask] for mask in _MASKS if mask in arrays}
    return GraphArrays(
        name=name,
        edges=edges,
        num_nodes=num_nodes,
        ids=_decoded(arrays.get("node_id")),
        features=features,
        label=label,
        label_names=None if class_names is None else tuple(_text(name) for name in class_names),
        split=_split_of(masks, num_nodes) if masks else None,
    )


def random_split(label: NDArray[np.int64], seed: int) -> NDArray[np.uint8]:
    """60% train, 20% validation and 20% test of each class; nodes of unknown class are in none."""
    generator = np.random.default_rng(seed)
    split = np.full(len(label), Split.NONE, dtype=np.uint8)
    for klass in np.unique(label[label >= 0]):
        members = generator.permutation(np.flatnonzero(label == klass))
        first, second = int(0.6 * len(members)), int(0.8 * len(members))
        split[members[:first]] = Split.TRAIN
        split[members[first:second]] = Split.VAL
        split[members[second:]] = Split.TEST
    return split


def _features_of(arrays: dict[str, NDArray[Any]]) -> Features | None:
    if "x" in arrays:
        x = arrays["x"]
        if x.ndim != 2:
            raise GraphInputError(f"x must be [num_nodes, feature_dim], but is {list(x.shape)}")
        return DenseFeatures(_feature_values(x))
    if "x_data" not in arrays:
        return None
    missing = [part for part in _SPARSE if part not in arrays]
    if missing:
        raise GraphInputError(f"sparse features lack {', '.join(missing)}")
    rows, columns = (int(size) for size in arrays["x_shape"])
    indptr, indices = arrays["x_indptr"].astype(np.int64), arrays["x_indices"].astype(np.int32)
    if len(indptr) != rows + 1 or indptr[0] != 0 or indptr[-1] != len(arrays["x_data"]):
        raise GraphInputError("x_indptr does not fit x_shape and x_data")
    if len(indices) != len(arrays["x_data"]) or (np.diff(indptr) < 0).any():
        raise GraphInputError("x_indices and x_indptr do not fit x_data")
    if len(indices) and not (indices.min() >= 0 and indices.max() < columns):
        raise GraphInputError(f"x_indices must lie in 0 to {columns - 1}")
    return CsrFeatures(indptr, indices, _feature_values(arrays["x_data"]), columns)


def _feature_values(values: NDArray[Any]) -> NDArray[np.floating]:
    if values.dtype.kind not in "fiub":
        raise GraphInputError(f"features must be numbers, but are {values.dtype}")
    return as_float(values)


def _count_nodes(
    edge_index: NDArray[Any],
    features: Features | None,
    label: NDArray[Any] | None,
    node_id: NDArray[Any] | None,
) -> int:
    if features is not None:
        return features.shape[0]
    for rows in (node_id, label):
        if rows is not None:
            return len(rows)
    return int(edge_index.max()) + 1 if edge_index.size else 0


def _split_of(masks: dict[str, NDArray[np.bool_]], num_nodes: int) -> NDArray[np.uint8]:
    split = np.full(num_nodes, Split.NONE, dtype=np.uint8)
    for name, mask in masks.items():
        if mask.shape != (num_nodes,) or mask.dtype != np.bool_:
            raise GraphInputError(
                f"{name} must be bool [{num_nodes}], but is {mask.dtype} {list(mask.shape)}"
            )
        split[mask] = _MASKS[name]
    return split


def _decoded(ids: NDArray[Any] | None) -> NDArray[Any] | None:
    return np.char.decode(ids, "utf-8") if ids is not None and ids.dtype.kind == "S" else ids


def _text(name: object) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
