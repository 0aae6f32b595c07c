"""Makes a graph of a PyG `Data` that `torch.save` wrote, without running what else is in the file."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import data as pyg_data
from torch_geometric.data import storage as pyg_storage

from archive.datasets import from_arrays
from handler.errors import GraphInputError
from handler.graph.arrays import GraphArrays

# PyG registers `Data` and `HeteroData` as safe to load, but forgets what they are made of. All of it only
# holds other values. That of `HeteroData` is here so that we can say that it is one.
_PARTS = [
    pyg_data.DataTensorAttr,
    pyg_data.DataEdgeAttr,
    pyg_storage.BaseStorage,
    pyg_storage.GlobalStorage,
    pyg_storage.NodeStorage,
    pyg_storage.EdgeStorage,
]
_WANTED = re.compile(r"GLOBAL ([\w.]+)")
_COLUMNS = ("edge_weight", "edge_time", "y", "node_id", "train_mask", "val_mask", "test_mask")


def load_pyg_data(path: Path) -> GraphArrays:
    """A graph from a file that `torch.save` wrote of a PyG `Data`, or of a plain dictionary of tensors.

    `edge_index` [2, num_edges] is required. Used are as well `edge_weight` and `edge_time` [num_edges],
    `time` if it has an entry per edge and not per node, `edge_attr` [num_edges, edge_dim], `x` (dense or
    sparse) [num_nodes, feature_dim], `y` [num_nodes], the masks `train_mask`, `val_mask` and `test_mask`,
    and `node_id`, a tensor of integers or a list of strings. Of masks [num_nodes, num_splits] the first
    split is taken. A column [num, 1] may stand for [num]. What a PyG dataset of one graph has processed
    (`processed/data.pt`) is such a file too.

    Raises:
        GraphInputError: the file holds no such graph, or more than one, or something that is neither a
            tensor nor a part of a `Data`, which is not loaded.
    """
    values = _values_of(path, _load(path))
    if not isinstance(values.get("edge_index"), torch.Tensor):
        raise GraphInputError(f"{path}: has no tensor `edge_index`")
    try:
        arrays = _arrays_of(values)
        num_nodes = values.get("num_nodes")
        return from_arrays(path.stem, arrays, num_nodes if isinstance(num_nodes, int) else None)
    except (GraphInputError, ValueError, IndexError, TypeError, RuntimeError) as error:
        raise GraphInputError(f"{path}: {error}") from None


def _load(path: Path) -> object:
    try:
        with torch.serialization.safe_globals(_PARTS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # sparse tensors are said to be new
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise GraphInputError(f"{path}: no such file") from None
    except OSError as error:
        raise GraphInputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - zip, pickle and PyTorch each raise their own
        wanted = _WANTED.search(str(error))
        if wanted is None:
            raise GraphInputError(f"{path}: not a file that torch.save wrote") from None
        raise GraphInputError(
            f"{path}: wants to load {wanted[1]}, but only a PyG Data of tensors is loaded, as others may"
            " run code"
        ) from None


def _values_of(path: Path, loaded: object) -> Mapping[str, Any]:
    if isinstance(loaded, tuple) and len(loaded) > 1:  # as PyG's InMemoryDataset saves it
        if loaded[1] is not None:
            raise GraphInputError(f"{path}: holds several graphs, but only one can be served")
        loaded = loaded[0]
    if isinstance(loaded, HeteroData):
        raise GraphInputError(
            f"{path}: holds a HeteroData, but only graphs of one node type and one edge type can be served"
        )
    if isinstance(loaded, Data):
        values: dict[str, Any] = loaded.to_dict()
        return values
    if isinstance(loaded, Mapping):
        return loaded
    raise GraphInputError(f"{path}: holds a {type(loaded).__name__}, not a PyG Data")


def _arrays_of(values: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays of `load_npz`, by name, with a `time` of edges as `edge_time`."""
    arrays = {"edge_index": _dense(values["edge_index"])}
    arrays |= {name: _column(values[name]) for name in _COLUMNS if values.get(name) is not None}
    if isinstance(values.get("edge_attr"), torch.Tensor):
        attr = _dense(values["edge_attr"])
        arrays["edge_attr"] = attr[:, None] if attr.ndim == 1 else attr
    if isinstance(values.get("x"), torch.Tensor):
        arrays |= _features(values["x"])
    class_names = values.get("class_names")
    if isinstance(class_names, list):
        arrays["class_names"] = np.array(class_names, dtype=np.str_)
    for mask in ("train_mask", "val_mask", "test_mask"):
        if mask in arrays and arrays[mask].ndim == 2:
            arrays[mask] = arrays[mask][:, 0]
    return arrays | _edge_time(values, arrays)


def _edge_time(values: Mapping[str, Any], arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    time = values.get("time")
    if "edge_time" in arrays or not isinstance(time, torch.Tensor):
        return {}
    rows = [values.get("num_nodes"), *(len(arrays[name]) for name in ("x", "y", "node_id") if name in arrays)]
    column = _column(time)
    of_edges = len(column) == arrays["edge_index"].shape[-1]
    return {"edge_time": column} if of_edges and len(column) not in rows else {}


def _column(values: object) -> NDArray[Any]:
    """[num] or, of several splits, [num, num_splits]; also of a list, as ids that are strings are kept."""
    array = _dense(values) if isinstance(values, torch.Tensor) else np.array(values)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _features(x: torch.Tensor) -> dict[str, NDArray[Any]]:
    if x.layout == torch.strided:
        return {"x": _dense(x)}
    if x.layout == torch.sparse_csr:
        indptr, indices, data = x.crow_indices(), x.col_indices(), x.values()
    else:
        entries = x.to_sparse(layout=torch.sparse_coo).coalesce()
        (rows, indices), data = entries.indices(), entries.values()
        indptr = torch.searchsorted(rows.contiguous(), torch.arange(x.shape[0] + 1))
    parts = {"x_indptr": indptr, "x_indices": indices, "x_data": data}
    return {name: _dense(part) for name, part in parts.items()} | {"x_shape": np.array(x.shape)}


def _dense(tensor: torch.Tensor) -> NDArray[Any]:
    # PyG's EdgeIndex is a subclass with rules of its own.
    plain = tensor.detach().as_subclass(torch.Tensor)
    if plain.dtype == torch.bfloat16:
        plain = plain.float()
    return np.asarray(plain.numpy())
