"""Graphs come in as they are, or with a reason why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archive.datasets import load_digits, load_npz, load_planetoid, random_split
from handler.errors import GraphInputError
from handler.graph.arrays import Split
from handler.graph.writer import write_snapshot

EDGES = np.array([[0, 1], [1, 2]])


@pytest.fixture
def npz(tmp_path: Path) -> Callable[..., Path]:
    def write(**arrays: Any) -> Path:
        np.savez(tmp_path / "graph.npz", **arrays)
        return tmp_path / "graph.npz"

    return write


def test_digits_are_scikit_learns() -> None:
    digits = load_digits()
    assert digits.num_nodes == 1797
    assert digits.ids is None
    assert digits.features is not None
    assert digits.features.shape == (1797, 64)
    assert digits.label is not None
    assert np.bincount(digits.label).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    (block,) = digits.edges.blocks()
    source, target = block.source, block.target
    assert set(zip(source.tolist(), target.tolist(), strict=True)) == set(
        zip(target.tolist(), source.tolist(), strict=True)
    )


def test_all_arrays_are_used(npz: Callable[..., Path]) -> None:
    path = npz(
        edge_index=EDGES,
        x=np.array([[1, 2], [3, 4], [5, 6]], dtype=np.int64),
        y=np.array([0, 1, 0]),
        class_names=np.array([b"no", b"yes"]),
        node_id=np.array(["a", "b", "c"]),
        train_mask=np.array([True, False, False]),
        test_mask=np.array([False, False, True]),
        unrelated=np.zeros(7),
    )
    graph = load_npz(path)
    assert graph.name == "graph"
    assert graph.features is not None
    assert graph.features.gather(np.array([2])).tolist() == [[5, 6]]
    assert graph.label_names == ("no", "yes")
    assert graph.ids is not None
    assert list(graph.ids) == ["a", "b", "c"]
    assert graph.split is not None
    assert graph.split.tolist() == [Split.TRAIN, Split.NONE, Split.TEST]


def test_ids_may_be_bytes(npz: Callable[..., Path]) -> None:
    ids = load_npz(npz(edge_index=EDGES, node_id=np.array(["é".encode(), b"b", b"c"]))).ids
    assert ids is not None
    assert list(ids) == ["é", "b", "c"]


def test_edges_alone_are_a_graph(npz: Callable[..., Path]) -> None:
    assert load_npz(npz(edge_index=EDGES)).num_nodes == 3


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"edges": EDGES}, "has no array `edge_index`"),
        ({"edge_index": EDGES, "x": np.zeros(3)}, r"x must be \[num_nodes, feature_dim\], but is \[3\]"),
        ({"edge_index": EDGES, "x": np.array([["a"]])}, "features must be numbers"),
        ({"edge_index": EDGES, "x_data": np.zeros(1)}, "sparse features lack x_indices, x_indptr, x_shape"),
        (
            {
                "edge_index": EDGES,
                "x_data": np.zeros(1),
                "x_indices": np.array([9]),
                "x_indptr": np.array([0, 1, 1, 1]),
                "x_shape": np.array([3, 2]),
            },
            "x_indices must lie in 0 to 1",
        ),
        (
            {
                "edge_index": EDGES,
                "x_data": np.zeros(1),
                "x_indices": np.array([0]),
                "x_indptr": np.array([0, 1]),
                "x_shape": np.array([3, 2]),
            },
            "x_indptr does not fit",
        ),
        (
            {"edge_index": EDGES, "y": np.zeros(3, int), "train_mask": np.zeros((10, 3), bool)},
            r"train_mask must be bool \[3\], but is bool \[10, 3\]",
        ),
        ({"edge_index": np.array([["a"], ["b"]])}, "edge_index"),
        ({"edge_index": EDGES, "y": np.array(["a", "b", "c"])}, r"classes must be integers .*, but are <U1"),
        ({"edge_index": EDGES, "y": np.zeros((3, 2), int)}, r"but are int64 \[3, 2\]"),
        ({"edge_index": EDGES, "y": np.array([0, 0.5, 1])}, "but are float64"),
        ({"edge_index": EDGES, "node_id": np.array([0, 0.5, 1])}, "node ids must be strings or 64-bit"),
        ({"edge_index": EDGES, "node_id": np.array([0, 1, 2**63], np.uint64)}, "but are uint64"),
    ],
)
def test_arrays_that_are_no_graph_are_refused_by_file(
    npz: Callable[..., Path], tmp_path: Path, arrays: dict[str, Any], problem: str
) -> None:
    path = npz(**arrays)
    with pytest.raises(GraphInputError, match=problem):
        write_snapshot(tmp_path / "graph", load_npz(path))


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04 cut off"])
def test_a_file_that_is_no_npz_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "graph.npz"
    path.write_bytes(content)
    with pytest.raises(GraphInputError, match=r"graph.npz: not a .npz file of plain arrays"):
        load_npz(path)
    with pytest.raises(GraphInputError, match="no such file"):
        load_npz(tmp_path / "missing.npz")


def test_pickled_arrays_are_refused(npz: Callable[..., Path]) -> None:
    path = npz(edge_index=np.array([{"run": "me"}], dtype=object))
    with pytest.raises(GraphInputError, match="allow_pickle"):
        load_npz(path)


def test_a_random_split_is_by_class_and_leaves_out_the_unknown() -> None:
    label = np.array([0] * 10 + [1] * 20 + [-1] * 5)
    split = random_split(label, seed=3)
    assert np.array_equal(split, random_split(label, seed=3))
    assert (split[label == -1] == Split.NONE).all()
    for klass, size in ((0, 10), (1, 20)):
        counts = np.bincount(split[label == klass], minlength=4).tolist()
        assert counts == [0, 0.6 * size, 0.2 * size, 0.2 * size]


def test_a_download_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr("torch_geometric.datasets.planetoid.fs.cp", no_network)
    with pytest.raises(GraphInputError, match="cora is not in .* and cannot be downloaded: OSError: Network"):
        load_planetoid("cora", tmp_path)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("cora", (2708, 10556)),
        ("citeseer", (3327, 9104)),
        ("tolokers", (11758, 1038000)),
        ("musae_github", (37700, 578006)),
    ],
)
def test_real_graphs_have_the_counts_of_their_documentation(
    dataset: Callable[[str], Path], tmp_path: Path, name: str, counts: tuple[int, int]
) -> None:
    report = write_snapshot(tmp_path / "graph", load_npz(dataset(name)))
    assert (report.num_nodes, report.edges.num_edges, report.edges.num_duplicates) == (*counts, 0)
