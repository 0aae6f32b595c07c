"""PyG's own loaders, layers and training loops work on a snapshot, over the samples that are served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import NegativeSampling
from torch_geometric.utils import trim_to_layer

from archive.export.layered import layered
from archive.pyg.layers import layered_arguments
from archive.pyg.loaders import link_neighbor_loader, neighbor_loader
from archive.pyg.sampler import SnapshotSampler
from archive.pyg.stores import SnapshotFeatureStore, SnapshotGraphStore
from handler.errors import GraphInputError
from handler.graph.arrays import GraphArrays, Split
from handler.graph.edges import EdgeArrays
from handler.graph.fanout import FanoutPlan
from handler.graph.features import DenseFeatures
from handler.graph.ordering import Ordering
from handler.graph.sampler import SampledTrees
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.writer import BuildPlan
from tests.graphs import EdgeData, SmallGraph, graphs_with_edge_data, layer_fanouts, small_graphs
from tests.models import random_model

SIZE = 60
RANDOM = Sampling(strategy="random", seed=3)
WALK = Sampling(strategy="walk", num_walks=8)


def _blocks() -> GraphArrays:
    """Two groups that link within themselves; each node's features say little, its neighbours' mean much."""
    generator = np.random.default_rng(0)
    label = generator.integers(0, 2, SIZE)
    source, target = generator.integers(0, SIZE, (2, 2000))
    inside = label[source] == label[target]
    edge_index = np.unique(np.stack([source[inside], target[inside]]), axis=1)
    count = edge_index.shape[1]
    x = label[:, None] + generator.standard_normal((SIZE, 4))
    return GraphArrays(
        "blocks",
        EdgeArrays(
            edge_index,
            weight=generator.integers(1, 9, count),
            time=generator.integers(0, 100, count),
            attr=generator.standard_normal((count, 2)).astype(np.float16),
        ),
        SIZE,
        features=DenseFeatures(x.astype(np.float32)),
        label=label,
        split=np.tile([Split.TRAIN, Split.TRAIN, Split.VAL], SIZE // 3).astype(np.uint8),
    )


@pytest.fixture
def blocks(make_snapshot: Callable[..., Snapshot]) -> Snapshot:
    return make_snapshot(_blocks(), BuildPlan(extra_orderings=(Ordering("recent"),)))


class TwoLayers(torch.nn.Module):
    """As one writes it for `NeighborLoader`."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(4, 8), SAGEConv(8, 2)])

    def forward(self, batch: Data, *, trim: bool = False) -> Tensor:
        x, edge_index = batch.x, batch.edge_index
        for layer, conv in enumerate(self.convs):
            if trim:
                x, edge_index, _ = trim_to_layer(
                    layer, batch.num_sampled_nodes, batch.num_sampled_edges, x, edge_index
                )
            x = conv(x, edge_index)
            x = x.relu() if layer == 0 else x
        return x


def _edges(snapshot: Snapshot) -> set[tuple[int, int]]:
    row, colptr = snapshot.adjacency.indices, snapshot.adjacency.indptr
    col = np.repeat(np.arange(snapshot.num_nodes), np.diff(colptr))
    return set(zip(row.tolist(), col.tolist(), strict=True))


# Stores


@given(small_graphs())
def test_the_edges_come_in_every_layout(graph: SmallGraph) -> None:
    snapshot = graph.to_snapshot()
    store = SnapshotGraphStore(snapshot)
    row, colptr, perm = store.csc()
    assert perm is None
    assert np.array_equal(row, snapshot.adjacency.indices)
    assert np.array_equal(colptr, snapshot.adjacency.indptr)
    row, col, _ = store.coo()
    assert set(zip(row.tolist(), col.tolist(), strict=True)) == _edges(snapshot)
    rowptr, col, perm = store.csr()
    row = torch.repeat_interleave(torch.arange(snapshot.num_nodes), rowptr.diff())
    assert len(rowptr) == snapshot.num_nodes + 1
    assert set(zip(row.tolist(), col.tolist(), strict=True)) == _edges(snapshot)


def test_the_data_of_nodes_and_edges_are_read_by_position(blocks: Snapshot) -> None:
    store, arrays = SnapshotFeatureStore(blocks), _blocks()
    assert arrays.features is not None
    assert arrays.label is not None
    names = [attr.attr_name for attr in store.get_all_tensor_attrs()]
    assert names == ["x", "y", "train_mask", "val_mask", "test_mask"]
    for index in (torch.tensor([5, 0, 5]), slice(2, 9, 3), 7, -1, None):
        rows = np.arange(SIZE)[index] if index is not None else np.arange(SIZE)
        rows = np.atleast_1d(np.asarray(rows))
        assert np.array_equal(store.get_tensor(None, "x", index), arrays.features.gather(rows))
        assert np.array_equal(store.get_tensor(None, "y", index), arrays.label[rows])
        assert store.get_tensor_size(None, "x", index) == (len(rows), 4)
    mask = store.get_tensor(None, "val_mask", None)
    assert mask.dtype == torch.bool
    assert mask.nonzero().view(-1).tolist() == list(range(2, SIZE, 3))
    assert len(store.get_tensor(None, "x", mask)) == SIZE // 3
    edges = blocks.adjacency
    assert edges.edge_weight is not None
    assert np.array_equal(store[None, "edge_weight", None], edges.edge_weight)
    assert store.get_tensor(None, "edge_attr", torch.tensor([3])).dtype == torch.float32
    assert store.get_tensor_size(None, "edge_time") == (blocks.num_edges,)


def test_a_snapshot_is_not_written_through_its_stores(blocks: Snapshot) -> None:
    features, graph = SnapshotFeatureStore(blocks), SnapshotGraphStore(blocks)
    nothing = torch.empty(0)
    for change in (
        lambda: features.put_tensor(nothing, None, "x", None),
        lambda: features.remove_tensor(None, "x", None),
        lambda: features.update_tensor(nothing, None, "x", None),
        lambda: graph.put_edge_index((nothing, nothing), None, "csc"),
        lambda: graph.remove_edge_index(None, "csc"),
    ):
        with pytest.raises(GraphInputError, match="a snapshot is read-only"):
            change()


def test_what_the_stores_do_not_have_is_said(blocks: Snapshot) -> None:
    features = SnapshotFeatureStore(blocks)
    with pytest.raises(KeyError, match="no tensor `z` in group None; without one: `x`, `y`"):
        features.get_tensor(None, "z", None)
    with pytest.raises(KeyError, match="in group 'paper'"):
        features.get_tensor("paper", "x", None)
    with pytest.raises(IndexError, match="rows 0 to 60 of 60"):
        features.get_tensor(None, "x", torch.tensor([0, SIZE]))
    with pytest.raises(IndexError, match="a mask of 2 for 60 rows"):
        features.get_tensor(None, "x", torch.tensor([True, False]))
    with pytest.raises(KeyError, match="not found"):
        SnapshotGraphStore(blocks).get_edge_index(("paper", "cites", "paper"), "csc")


# Samples


def _tree_edges(trees: SampledTrees, tree: int) -> list[tuple[int, int, int, int]]:
    """(hop of the parent, parent, child, rank) of one seed's tree, by position in the tree of hops."""
    inside = (trees.edge_index[0] >= trees.ptr[tree]) & (trees.edge_index[0] < trees.ptr[tree + 1])
    source, target = trees.edge_index[:, inside]
    columns = trees.hop[target], trees.node[target], trees.node[source], trees.edge_rank[inside]
    return [tuple(map(int, edge)) for edge in zip(*columns, strict=True)]  # type: ignore[misc]


@pytest.mark.parametrize("sampling", [None, RANDOM, WALK])
@given(small_graphs(), layer_fanouts)
def test_trees_are_those_that_are_served(
    sampling: Sampling | None, graph: SmallGraph, fanouts: tuple[int, ...]
) -> None:
    snapshot = graph.to_snapshot()
    seeds = np.arange(len(graph.ids))
    sampler = SnapshotSampler(snapshot, fanouts[::-1], sampling)
    out = sampler._sample(torch.from_numpy(seeds))
    wanted = snapshot.sampler(sampling).trees(seeds, FanoutPlan.of(fanouts))
    assert out.node[: len(seeds)].tolist() == seeds.tolist()
    assert sum(out.num_sampled_nodes) == len(out.node) == len(wanted.node)
    assert sum(out.num_sampled_edges) == len(out.row) == wanted.num_edges
    assert out.num_sampled_edges == out.num_sampled_nodes[1:]
    assert torch.equal(out.batch[out.row], out.batch[out.col])
    for seed in seeds:
        inside = out.batch[out.col] == seed
        row, col = out.row[inside], out.col[inside]
        columns = out.hop[col], out.node[col], out.node[row], out.edge_rank[inside]
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == _tree_edges(wanted, seed)
    if sampling is WALK:
        assert out.edge is None
        assert wanted.share is not None
        assert np.allclose(np.sort(out.edge_weight.numpy()), np.sort(wanted.share))
    else:
        assert np.array_equal(snapshot.adjacency.indices[out.edge.numpy()], out.node[out.row])


@given(graphs_with_edge_data(), layer_fanouts)
def test_merged_samples_give_each_node_once_and_the_same_results(
    graph: EdgeData, fanouts: tuple[int, ...]
) -> None:
    snapshot = graph.to_snapshot()
    config, model = random_model(fanouts, edge_inputs=("edge_weight", "edge_attr"), edge_dim=1)
    served = layered(model, fanouts, config.feature_dim, config.edge_inputs, config.edge_dim).module
    outputs = []
    for disjoint in (True, False):
        loader = neighbor_loader(snapshot, fanouts[::-1], batch_size=len(graph.ids), disjoint=disjoint)
        (batch,) = loader
        with torch.inference_mode():
            outputs.append(served(*layered_arguments(batch, fanouts, config.edge_inputs)))
        if not disjoint:
            assert len(set(batch.n_id.tolist())) == batch.num_nodes
    for found, wanted in zip(*outputs, strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)


def test_merged_samples_survive_repeated_seeds(blocks: Snapshot) -> None:
    (batch,) = neighbor_loader(blocks, [3, 2], np.array([4, 7, 4]), batch_size=3, disjoint=False)
    assert batch.n_id[:3].tolist() == [4, 7, 4]
    alone = [next(iter(neighbor_loader(blocks, [3, 2], np.array([node])))) for node in (4, 7, 4)]
    model = TwoLayers()
    wanted = torch.cat([model(each)[:1] for each in alone])
    assert torch.allclose(model(batch)[:3], wanted, atol=1e-6)


def test_a_seed_sees_only_its_past(blocks: Snapshot) -> None:
    recent = Sampling(strategy="recent")
    time = torch.tensor([10.0, 50.0, 99.0])
    loader = neighbor_loader(
        blocks, [5, 5], np.array([4, 4, 4]), sampling=recent, input_time=time, batch_size=3
    )
    (batch,) = loader
    assert batch.seed_time.tolist() == time.tolist()
    when = SnapshotFeatureStore(blocks).get_tensor(None, "edge_time", batch.e_id)
    limit = time[batch.batch[batch.edge_index[1]]]
    assert (when <= limit).all()
    assert [int((when[limit == each] > 10).sum()) > 0 for each in time] == [False, True, True]
    with pytest.raises(GraphInputError, match="times of seeds need a sampling by `recent`"):
        next(iter(neighbor_loader(blocks, [5], np.array([4]), input_time=time[:1])))
    arguments: dict[str, Any] = {"sampling": recent, "input_time": time[:1], "disjoint": False}
    with pytest.raises(GraphInputError, match="need disjoint samples"):
        next(iter(neighbor_loader(blocks, [5], np.array([4]), **arguments)))


def test_random_samples_change_with_the_epoch_and_not_with_the_run(blocks: Snapshot) -> None:
    def epochs(**workers: Any) -> list[list[int]]:
        loader = neighbor_loader(blocks, [2, 2], sampling=RANDOM, batch_size=20, **workers)
        return [torch.cat([batch.n_id for batch in loader]).tolist() for _ in range(3)]

    first = epochs()
    assert first[0] != first[1] != first[2] != first[0]
    assert first == epochs() == epochs(num_workers=1)
    with pytest.raises(GraphInputError, match="persistent workers would not hear of"):
        epochs(num_workers=1, persistent_workers=True)
    stored = neighbor_loader(blocks, [2, 2], batch_size=SIZE)
    assert torch.equal(next(iter(stored)).n_id, next(iter(stored)).n_id)


@pytest.mark.parametrize(
    ("num_neighbors", "sampling", "nodes", "problem"),
    [
        ([], None, [0], "num_neighbors must be 1 or more for each hop"),
        ([5, -1], None, [0], r"num_neighbors must be 1 or more for each hop, but are \[5, -1\]"),
        ([5], Sampling(strategy="top_weight"), [0], "stores no ordering `top_weight`"),
        ([5], None, [SIZE], "node indices must be 0 to 59, but run from 60 to 60"),
    ],
)
def test_what_cannot_be_sampled_is_refused(
    blocks: Snapshot, num_neighbors: list[int], sampling: Sampling | None, nodes: list[int], problem: str
) -> None:
    with pytest.raises(GraphInputError, match=problem):
        next(iter(neighbor_loader(blocks, num_neighbors, np.array(nodes), sampling=sampling)))


# Loaders


def test_a_batch_has_what_a_model_may_ask_for(blocks: Snapshot) -> None:
    loader = neighbor_loader(
        blocks, [3, 2], "val", batch_size=8, transform=lambda data: data.update({"seen": 1})
    )
    batch = next(iter(loader))
    assert batch.seen == 1
    assert batch.batch_size == 8
    assert batch.n_id[:8].tolist() == list(range(2, 26, 3))
    assert batch.val_mask[:8].all()
    arrays, edges = _blocks(), blocks.adjacency
    assert arrays.features is not None
    assert arrays.label is not None
    assert edges.edge_weight is not None
    assert edges.edge_attr is not None
    assert np.array_equal(batch.x, arrays.features.gather(batch.n_id.numpy()))
    assert np.array_equal(batch.y, arrays.label[batch.n_id])
    assert np.array_equal(batch.edge_weight, edges.edge_weight[batch.e_id])
    assert np.array_equal(batch.edge_attr, edges.edge_attr[batch.e_id].astype(np.float32))
    assert batch.input_id.tolist() == list(range(8))
    assert len(loader) == 3
    assert isinstance(loader, NodeLoader)


def test_walks_bring_their_shares(blocks: Snapshot) -> None:
    batch = next(iter(neighbor_loader(blocks, [3, 2], sampling=WALK, batch_size=SIZE)))
    assert "e_id" not in batch
    assert "edge_attr" not in batch
    assert ((batch.edge_weight > 0) & (batch.edge_weight <= 1)).all()


def test_input_nodes_may_be_a_mask(blocks: Snapshot) -> None:
    mask = SnapshotFeatureStore(blocks).get_tensor(None, "val_mask", None)
    (batch,) = neighbor_loader(blocks, [2], mask, batch_size=SIZE)
    assert batch.n_id[: batch.batch_size].tolist() == mask.nonzero().view(-1).tolist()
    with pytest.raises(GraphInputError, match="a split is `train`, `val` or `test`"):
        neighbor_loader(blocks, [2], "dev")  # type: ignore[arg-type]


def test_a_graph_without_a_split_has_no_named_nodes(make_snapshot: Callable[..., Snapshot]) -> None:
    bare = make_snapshot(GraphArrays("g", EdgeArrays(np.array([[0], [1]])), 2))
    with pytest.raises(GraphInputError, match="has no split, so no `train` nodes"):
        neighbor_loader(bare, [2], "train")
    (batch,) = neighbor_loader(bare, [2], batch_size=2)  # no features either
    assert batch.num_nodes == 3


@pytest.mark.parametrize("disjoint", [True, False])
@pytest.mark.parametrize("sampling", [None, RANDOM, WALK])
def test_a_plain_training_loop_learns(blocks: Snapshot, sampling: Sampling | None, disjoint: bool) -> None:
    torch.manual_seed(0)
    model = TwoLayers()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loader = neighbor_loader(
        blocks, [5, 5], "train", sampling=sampling, disjoint=disjoint, batch_size=16, shuffle=True
    )
    for _ in range(15):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch)[: batch.batch_size]
            functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
    with torch.inference_mode():
        (batch,) = neighbor_loader(
            blocks, [5, 5], "val", sampling=sampling, disjoint=disjoint, batch_size=SIZE
        )
        found = model(batch)[: batch.batch_size]
        assert (found.argmax(1) == batch.y[: batch.batch_size]).float().mean() > 0.9
        assert torch.allclose(model(batch, trim=True)[: batch.batch_size], found, atol=1e-6)


# Links


@pytest.mark.parametrize("disjoint", [True, False])
def test_links_come_with_negative_ones(blocks: Snapshot, disjoint: bool) -> None:
    loader = link_neighbor_loader(
        blocks, [3, 2], disjoint=disjoint, neg_sampling="binary", batch_size=32, shuffle=True
    )
    assert isinstance(loader, LinkLoader)
    assert len(loader) == -(-blocks.num_edges // 32)
    batch = next(iter(loader))
    assert batch.edge_label.tolist() == [1] * 32 + [0] * 32
    ends = batch.n_id[batch.edge_label_index]
    links = set(zip(*ends[:, :32].tolist(), strict=True))
    assert links <= _edges(blocks)
    assert (batch.hop[batch.edge_label_index] == 0).all()
    assert "edge_weight" in batch
    model = TwoLayers()
    seeds = batch.num_sampled_nodes[0]
    assert torch.allclose(model(batch, trim=True)[:seeds], model(batch)[:seeds], atol=1e-6)


def test_triplets_hold_for_both_layouts(blocks: Snapshot) -> None:
    links = torch.tensor([[0, 1, 2], [3, 4, 3]])
    for disjoint in (True, False):
        (batch,) = link_neighbor_loader(
            blocks, [2], links, disjoint=disjoint, neg_sampling=NegativeSampling("triplet"), batch_size=3
        )
        assert batch.n_id[batch.src_index].tolist() == [0, 1, 2]
        assert batch.n_id[batch.dst_pos_index].tolist() == [3, 4, 3]
        assert batch.dst_neg_index.shape == (3,)


def test_links_may_have_times(blocks: Snapshot) -> None:
    links = torch.tensor([[0, 1], [3, 4]])
    arguments: dict[str, Any] = {"edge_label_time": torch.tensor([20.0, 80.0]), "batch_size": 2}
    recent = Sampling(strategy="recent")
    (batch,) = link_neighbor_loader(blocks, [4], links, sampling=recent, **arguments)
    when = SnapshotFeatureStore(blocks).get_tensor(None, "edge_time", batch.e_id)
    assert (when <= batch.edge_label_time[batch.batch[batch.edge_index[1]]]).all()
    for sampling, disjoint in ((None, True), (recent, False)):
        loader = link_neighbor_loader(blocks, [4], links, sampling=sampling, disjoint=disjoint, **arguments)
        with pytest.raises(GraphInputError, match="times of seeds need"):
            next(iter(loader))
