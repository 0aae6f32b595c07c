"""A saved PyG `Data` comes in with all that a graph has, and nothing in the file is run."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from archive.pyg_data import load_pyg_data
from handler.errors import GraphInputError
from handler.graph.arrays import GraphArrays, Split

EDGES = torch.tensor([[0, 1], [1, 2]])

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")


@pytest.fixture
def read(tmp_path: Path) -> Callable[[object], GraphArrays]:
    def read(saved: object) -> GraphArrays:
        torch.save(saved, tmp_path / "graph.pt")
        return load_pyg_data(tmp_path / "graph.pt")

    return read


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("was-run",)


def _columns(graph: GraphArrays) -> dict[str, Any]:
    (block,) = graph.edges.blocks()
    return {name: values.tolist() for name, values in block.columns().items()}


def test_all_that_a_graph_has_is_used(read: Callable[[object], GraphArrays]) -> None:
    graph = read(
        Data(
            edge_index=EDGES,
            x=torch.tensor([[1.0, 2], [3, 4], [5, 6]], requires_grad=True),
            y=torch.tensor([[0], [1], [0]]),
            edge_weight=torch.tensor([[0.5], [2]]),
            edge_attr=torch.tensor([7, 8]),
            edge_time=torch.tensor([10, 20]),
            node_id=["a", "b", "c"],
            train_mask=torch.tensor([True, False, False]),
            test_mask=torch.tensor([False, True, False]),
            class_names=["no", "yes"],
            unrelated=torch.ones(7),
        )
    )
    assert (graph.name, graph.num_nodes, graph.label_names) == ("graph", 3, ("no", "yes"))
    assert _columns(graph) == {
        "source": [0, 1], "target": [1, 2], "weight": [0.5, 2], "time": [10, 20], "attr": [[7], [8]],
    }  # fmt: skip
    assert graph.features is not None
    assert graph.features.gather(np.array([2])).tolist() == [[5, 6]]
    assert np.asarray(graph.ids).tolist() == ["a", "b", "c"]
    assert np.asarray(graph.label).tolist() == [0, 1, 0]
    assert np.asarray(graph.split).tolist() == [Split.TRAIN, Split.TEST, Split.NONE]


def test_integer_ids_and_nodes_without_edges_are_kept(read: Callable[[object], GraphArrays]) -> None:
    assert read(Data(edge_index=EDGES, num_nodes=5)).num_nodes == 5
    graph = read(Data(edge_index=EDGES, node_id=torch.tensor([30, 10, 20, 5])))
    assert (graph.num_nodes, np.asarray(graph.ids).tolist()) == (4, [30, 10, 20, 5])


def test_a_dictionary_of_tensors_is_a_graph(read: Callable[[object], GraphArrays]) -> None:
    graph = read({"edge_index": EDGES, "x": torch.eye(3, dtype=torch.bfloat16)})
    assert graph.features is not None
    assert graph.num_nodes == 3
    assert graph.features.dtype == np.float32
    half = read({"edge_index": EDGES, "x": torch.eye(3, dtype=torch.float16)}).features
    assert half is not None
    assert half.dtype == np.float16


def test_what_a_dataset_of_one_graph_has_processed_is_a_graph(tmp_path: Path) -> None:
    graph = Data(edge_index=EDGES, x=torch.eye(3))
    InMemoryDataset.save([graph], str(tmp_path / "data.pt"))
    assert load_pyg_data(tmp_path / "data.pt").num_nodes == 3
    InMemoryDataset.save([graph, graph], str(tmp_path / "data.pt"))
    with pytest.raises(GraphInputError, match=r"data.pt: holds several graphs"):
        load_pyg_data(tmp_path / "data.pt")


@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_sparse_features_stay_sparse(read: Callable[[object], GraphArrays], form: str) -> None:
    x = torch.tensor([[0.0, 1], [0, 0], [2, 3]])
    sparse = {"coo": x.to_sparse, "csr": x.to_sparse_csr, "csc": x.to_sparse_csc}[form]()
    features = read(Data(edge_index=EDGES, x=sparse)).features
    assert features is not None
    assert features.kind == "csr"
    assert np.array_equal(features.gather(np.arange(3)), x.numpy())


def test_of_several_splits_the_first_is_taken(read: Callable[[object], GraphArrays]) -> None:
    mask = torch.tensor([[True, False], [False, True], [False, True]])
    graph = read(Data(edge_index=EDGES, x=torch.eye(3), train_mask=mask, val_mask=~mask))
    assert np.asarray(graph.split).tolist() == [Split.TRAIN, Split.VAL, Split.VAL]


def test_a_time_is_of_edges_only_if_it_can_be_of_nothing_else(read: Callable[[object], GraphArrays]) -> None:
    assert _columns(read(Data(edge_index=EDGES, x=torch.eye(3), time=torch.tensor([4, 5]))))["time"] == [4, 5]
    assert "time" not in _columns(read(Data(edge_index=EDGES, x=torch.eye(3), time=torch.tensor([4, 5, 6]))))
    assert "time" not in _columns(read(Data(edge_index=EDGES[:, :1], num_nodes=1, time=torch.tensor([4]))))


def test_an_edge_index_of_pygs_own_class_is_read(read: Callable[[object], GraphArrays]) -> None:
    index = EdgeIndex([[0, 1], [1, 2]], sparse_size=(3, 3), sort_order="row")
    assert _columns(read(Data(edge_index=index)))["target"] == [1, 2]


@pytest.mark.parametrize(
    ("saved", "problem"),
    [
        (Data(x=_Runs()), r"wants to load \w+.mkdir, but only a PyG Data of tensors is loaded"),
        ({"edge_index": Namespace(a=1)}, "wants to load argparse.Namespace, but"),
        (Data(x=torch.eye(2)), "has no tensor `edge_index`"),
        ({}, "has no tensor `edge_index`"),
        (torch.eye(2), "holds a Tensor, not a PyG Data"),
        (Data(edge_index=EDGES.float()), "edge_index must be integers"),
        (Data(edge_index=EDGES, x=torch.ones(3)), r"x must be \[num_nodes, feature_dim\], but is \[3\]"),
        (Data(edge_index=EDGES, edge_weight=torch.ones(3)), "edge_weight must be numbers .* for 2 edges"),
        (Data(edge_index=EDGES, x=torch.eye(3), train_mask=torch.ones(3)), r"train_mask must be bool \[3\]"),
    ],
)
def test_what_is_no_graph_is_refused_in_one_line(
    read: Callable[[object], GraphArrays], saved: object, problem: str
) -> None:
    with pytest.raises(GraphInputError, match=f"graph.pt: {problem}") as refused:
        read(saved)
    assert "\n" not in str(refused.value)
    assert not Path("was-run").exists()


def test_several_types_of_nodes_are_refused(read: Callable[[object], GraphArrays]) -> None:
    data = HeteroData()
    data["paper"].x = torch.eye(2)
    data["paper", "cites", "paper"].edge_index = EDGES[:, :1]
    with pytest.raises(GraphInputError, match=r"holds a HeteroData, but only graphs of one node type"):
        read(data)


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04 cut off"])
def test_a_file_that_torch_did_not_write_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "graph.pt").write_bytes(content)
    with pytest.raises(GraphInputError, match=r"graph.pt: not a file that torch.save wrote"):
        load_pyg_data(tmp_path / "graph.pt")
    with pytest.raises(GraphInputError, match="no such file"):
        load_pyg_data(tmp_path / "missing.pt")
