"""The batch that is built from arrays is the one that PyG would build from graphs."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from torch_geometric.data import Batch, Data

from handler.graph.fanout import FanoutPlan
from handler.graph.snapshot import Snapshot
from handler.model.batch import to_batch
from tests.graphs import EdgeData, SmallGraph, graphs_with_edge_data, layer_fanouts, small_graphs


def _alone(snapshot: Snapshot, seed: int, plan: FanoutPlan) -> Data:
    """The subgraph of one seed, sampled alone and made the ordinary way."""
    trees = snapshot.sampler().trees(np.array([seed]), plan)
    assert snapshot.features is not None
    return Data(
        x=torch.from_numpy(snapshot.features.gather(trees.node)),
        edge_index=torch.from_numpy(trees.edge_index),
        n_id=torch.from_numpy(trees.node),
        hop=torch.from_numpy(trees.hop),
        edge_rank=torch.from_numpy(trees.edge_rank),
    )


@given(small_graphs(), layer_fanouts)
def test_it_equals_pygs_own_batch(graph: SmallGraph, fanouts: tuple[int, ...]) -> None:
    snapshot, plan = graph.to_snapshot(), FanoutPlan.of(fanouts)
    seeds = np.arange(len(graph.ids))
    trees = snapshot.sampler().trees(seeds, plan)
    assert snapshot.features is not None
    built = to_batch(trees, snapshot.features.gather(trees.node))
    singles = [_alone(snapshot, seed, plan) for seed in seeds]
    wanted = Batch.from_data_list(singles)
    assert set(built.keys()) == set(wanted.keys())
    for name in wanted.keys():  # noqa: SIM118 - PyG's own method
        assert torch.equal(built[name], wanted[name]), name
        assert built[name].dtype == wanted[name].dtype, name
    assert built.num_graphs == wanted.num_graphs == len(singles)
    for part, single in zip(built.to_data_list(), singles, strict=True):
        for name in single.keys():  # noqa: SIM118
            assert torch.equal(part[name], single[name]), name
    assert torch.equal(built.n_id[built.ptr[:-1]], torch.from_numpy(seeds))


def test_it_moves_as_a_whole() -> None:
    ring = SmallGraph([0, 1, 2], [(0, 1), (1, 2), (2, 0)])
    trees = ring.to_snapshot().sampler().trees(np.array([0, 1]), FanoutPlan.of((1, 1)))
    moved = to_batch(trees, ring.features()[trees.node]).to("meta")
    assert {moved[name].device.type for name in ("x", "edge_index", "hop", "edge_rank", "ptr")} == {"meta"}


@given(graphs_with_edge_data(), layer_fanouts)
def test_the_data_of_edges_go_with_their_trees(graph: EdgeData, fanouts: tuple[int, ...]) -> None:
    snapshot = graph.to_snapshot()
    sampler, plan = snapshot.sampler(), FanoutPlan.of(fanouts)
    trees = sampler.trees(np.arange(len(graph.ids)), plan)
    weight, attr = sampler.edge_weight(trees), sampler.edge_attr(trees)
    assert snapshot.features is not None
    assert weight is not None
    assert attr is not None
    batch = to_batch(trees, snapshot.features.gather(trees.node), {"edge_attr": attr, "edge_weight": weight})
    for seed, part in enumerate(batch.to_data_list()):
        alone = sampler.trees(np.array([seed]), plan)
        assert np.array_equal(part.edge_weight, sampler.edge_weight(alone))
        assert np.array_equal(part.edge_attr, sampler.edge_attr(alone))
