"""PyG's `BaseSampler` over a snapshot: the samples that are served, in the layout of PyG's loaders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from handler.errors import GraphInputError
from handler.graph.fanout import FanoutPlan
from handler.graph.sampler import SampledTrees
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot


@dataclass
class SnapshotSamplerOutput(SamplerOutput):  # type: ignore[misc]  # PyG has no types
    """PyG's output, with what the layers of a model may need beside it.

    Args:
        hop: int8 [num_nodes], distance from the nearest seed.
        edge_rank: int32 [num_edges], the source's place among its target's ordered neighbours.
        edge_weight: float32 [num_edges], or none.
        edge_attr: float32 [num_edges, edge_dim], or none.
    """

    hop: Tensor | None = None
    edge_rank: Tensor | None = None
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None


class SnapshotSampler(BaseSampler):  # type: ignore[misc]  # PyG has no types
    """Samples nodes and links of a snapshot for PyG's `NodeLoader` and `LinkLoader`.

    Nodes come hop by hop, the seeds first, and edges in the order of their targets, so that PyG's
    `trim_to_layer` works.

    Args:
        num_neighbors: for each hop from the seed outwards, at least 1. A node is expanded by the largest
            number that a layer at its place needs, as it is served: where the numbers differ, a layer
            takes the edges whose `edge_rank` is below its own.
        sampling: as a model's; none for the order in which the snapshot lies.
        disjoint: every seed gets a tree of its own, in which a node met twice stands twice: the very
            graph that a model is served. Otherwise a batch has each node once, at its shortest distance,
            which is less work and gives layers that look at a node and its sampled neighbours alone the
            same results.

    Raises:
        GraphInputError: the snapshot does not store such an ordering, or `num_neighbors` are none.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        num_neighbors: Sequence[int],
        sampling: Sampling | None = None,
        *,
        disjoint: bool = True,
    ) -> None:
        if not num_neighbors or min(num_neighbors) < 1:
            raise GraphInputError(
                f"num_neighbors must be 1 or more for each hop, but are {list(num_neighbors)}"
            )
        self.disjoint = disjoint
        self._snapshot = snapshot
        self._sampling = sampling or Sampling()
        self._sampler = snapshot.sampler(sampling)
        self._fanouts = FanoutPlan.of(tuple(reversed(num_neighbors))).hop_fanouts
        self._num_epochs = 0

    @property
    def changes(self) -> bool:
        """Whether each epoch has other samples."""
        return self._sampling.strategy == "random"

    @property
    def edge_permutation(self) -> None:
        """None: edges are named by their position in the snapshot."""
        return

    def start_epoch(self) -> None:
        """From now on sample as in the next epoch: otherwise than before where samples are `random`."""
        if self.changes:
            entropy = (self._sampling.seed, self._num_epochs)
            (bits,) = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
            self._sampler = self._snapshot.sampler(
                msgspec.structs.replace(self._sampling, seed=int(bits >> np.uint64(1)))
            )
        self._num_epochs += 1

    def sample_from_nodes(self, inputs: NodeSamplerInput) -> SnapshotSamplerOutput:
        """Sample the neighbourhood of each node; `inputs.time` is its `as_of`."""
        out: SnapshotSamplerOutput = node_sample(inputs, self._sample)
        return out

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SnapshotSamplerOutput:
        """Sample the neighbourhood of both ends of each link, and of the negative ones that PyG draws."""
        self._check_time(inputs.time)
        num_nodes = self._snapshot.num_nodes
        out: SnapshotSamplerOutput = edge_sample(
            inputs, self._sample, num_nodes, self.disjoint, None, neg_sampling
        )
        return out

    def _sample(self, seed: Tensor, seed_time: Tensor | None = None) -> SnapshotSamplerOutput:
        self._check_time(seed_time)
        seeds = seed.numpy().astype(np.int64, copy=False)
        last = self._snapshot.num_nodes - 1
        if len(seeds) and not 0 <= seeds.min() <= seeds.max() <= last:
            raise GraphInputError(
                f"node indices must be 0 to {last}, but run from {seeds.min()} to {seeds.max()}"
            )
        as_of = None if seed_time is None else seed_time.numpy().astype(np.float64)
        return self._output(seeds, list(self._expand(seeds, as_of)))

    def _check_time(self, time: Tensor | None) -> None:
        if time is None:
            return
        if not self._sampler.knows_time:
            raise GraphInputError("times of seeds need a sampling by `recent`")
        if not self.disjoint:
            raise GraphInputError("times of seeds need disjoint samples: each seed sees its own past")

    def _expand(self, seeds: NDArray[np.int64], as_of: NDArray[np.float64] | None) -> Iterator[_Hop]:
        """Expand hop by hop what the hop before has brought."""
        places: _Trees | _Merged = _Trees(seeds) if self.disjoint else _Merged(seeds)
        frontier, tree, start = seeds, np.arange(len(seeds)), 0
        for fanout in self._fanouts:
            sampled = self._sampler.trees(
                frontier, FanoutPlan.of((fanout,)), None if as_of is None else as_of[tree]
            )
            parent = np.repeat(np.arange(len(frontier)), np.diff(sampled.ptr) - 1)
            child_place, new = places.add(sampled.node[sampled.edge_index[0]])
            col = start + parent
            start += len(frontier)
            frontier, tree = new, tree[parent] if self.disjoint else tree
            yield _Hop(sampled, child_place, col, new, tree)

    def _output(self, seeds: NDArray[np.int64], hops: list[_Hop]) -> SnapshotSamplerOutput:
        nodes = [seeds, *(hop.new for hop in hops)]
        num_nodes = [len(part) for part in nodes]
        tree = [np.arange(len(seeds)), *(hop.tree for hop in hops)]
        walked = hops[0].sampled.share is not None
        return SnapshotSamplerOutput(
            node=_joined(nodes),
            row=_joined([hop.row for hop in hops]),
            col=_joined([hop.col for hop in hops]),
            edge=None if walked else _joined([hop.sampled.edge for hop in hops]),
            batch=_joined(tree) if self.disjoint else None,
            num_sampled_nodes=num_nodes,
            num_sampled_edges=[len(hop.row) for hop in hops],
            hop=torch.repeat_interleave(torch.arange(len(nodes), dtype=torch.int8), torch.tensor(num_nodes)),
            edge_rank=_joined([hop.sampled.edge_rank for hop in hops]),
            edge_weight=_joined([self._sampler.edge_weight(hop.sampled) for hop in hops]),
            edge_attr=_joined([self._sampler.edge_attr(hop.sampled) for hop in hops]),
        )


@dataclass(frozen=True)
class _Hop:
    """One hop: edges from places `row` to places `col`, the nodes it brought, and their seeds' numbers."""

    sampled: SampledTrees
    row: NDArray[np.int64]
    col: NDArray[np.int64]
    new: NDArray[np.int64]
    tree: NDArray[np.int64]


class _Trees:
    """Gives every node that comes a place of its own."""

    def __init__(self, seeds: NDArray[np.int64]) -> None:
        self._count = len(seeds)

    def add(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The place of each node, and the nodes that are new."""
        start, self._count = self._count, self._count + len(nodes)
        return np.arange(start, self._count), nodes


class _Merged:
    """Gives every distinct node one place, that of its first coming."""

    def __init__(self, seeds: NDArray[np.int64]) -> None:
        self._node, self._place = np.unique(seeds, return_index=True)  # ascending by node
        self._count = len(seeds)

    def add(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The place of each node, and the nodes that are new."""
        distinct, inverse = np.unique(nodes, return_inverse=True)
        at = np.searchsorted(self._node, distinct)
        near = np.minimum(at, len(self._node) - 1)
        is_new = self._node[near] != distinct
        place = np.where(is_new, self._count - 1 + np.cumsum(is_new), self._place[near])
        new = distinct[is_new]
        self._node = np.insert(self._node, at[is_new], new)
        self._place = np.insert(self._place, at[is_new], place[is_new])
        self._count += len(new)
        return place[inverse], new


def _joined(parts: Sequence[NDArray[Any] | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.from_numpy(np.concatenate(there)) if there else None
