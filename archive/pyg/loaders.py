"""PyG's `NodeLoader` and `LinkLoader` over a snapshot, without pyg-lib or torch-sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import LinkLoader, NodeLoader

from archive.pyg.sampler import SnapshotSampler, SnapshotSamplerOutput
from archive.pyg.stores import SnapshotFeatureStore, SnapshotGraphStore
from handler.errors import GraphInputError
from handler.graph.arrays import Split
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot

Transform = Callable[[Data], Data]
SplitName = Literal["train", "val", "test"]


class _FromSnapshot:
    """What both loaders do beyond PyG's: edge data in the batches, and other samples in each epoch."""

    def __init__(self, sampler: SnapshotSampler, transform: Transform | None, **kwargs: Any) -> None:
        if sampler.changes and kwargs.get("persistent_workers"):
            raise GraphInputError(
                "`random` samples change with each epoch, which persistent workers would not hear of"
            )
        self._snapshot_sampler = sampler
        self._finish = transform
        super().__init__(**kwargs)  # PyG's loader

    def __iter__(self) -> Iterator[Data]:
        self._snapshot_sampler.start_epoch()
        batches: Iterator[Data] = super().__iter__()  # type: ignore[misc]
        return batches

    def filter_fn(self, out: SnapshotSamplerOutput) -> Data:
        """PyG's batch, to which its stores do not bring what edges have; then the user's transform."""
        data: Data = super().filter_fn(out)  # type: ignore[misc]
        data.num_nodes = len(out.node)
        data.hop, data.edge_rank = out.hop, out.edge_rank
        if out.edge_weight is not None:
            data.edge_weight = out.edge_weight
        if out.edge_attr is not None:
            data.edge_attr = out.edge_attr
        return data if self._finish is None else self._finish(data)


class SnapshotNodeLoader(_FromSnapshot, NodeLoader):  # type: ignore[misc]  # PyG has no types
    """Minibatches of nodes; see `neighbor_loader`."""

    def __init__(
        self,
        snapshot: Snapshot,
        sampler: SnapshotSampler,
        input_nodes: Tensor,
        transform: Transform | None = None,
        **kwargs: Any,
    ) -> None:
        stores = (SnapshotFeatureStore(snapshot), SnapshotGraphStore(snapshot))
        super().__init__(
            sampler, transform, data=stores, node_sampler=sampler, input_nodes=input_nodes, **kwargs
        )


class SnapshotLinkLoader(_FromSnapshot, LinkLoader):  # type: ignore[misc]  # PyG has no types
    """Minibatches of links; see `link_neighbor_loader`."""

    def __init__(
        self,
        snapshot: Snapshot,
        sampler: SnapshotSampler,
        edge_label_index: Tensor,
        transform: Transform | None = None,
        **kwargs: Any,
    ) -> None:
        stores = (SnapshotFeatureStore(snapshot), SnapshotGraphStore(snapshot))
        links = (None, edge_label_index)  # of no edge type
        super().__init__(
            sampler, transform, data=stores, link_sampler=sampler, edge_label_index=links, **kwargs
        )


def neighbor_loader(
    snapshot: Snapshot,
    num_neighbors: Sequence[int],
    input_nodes: Tensor | NDArray[Any] | SplitName | None = None,
    *,
    sampling: Sampling | None = None,
    disjoint: bool = True,
    transform: Transform | None = None,
    **kwargs: Any,
) -> SnapshotNodeLoader:
    """What `NeighborLoader` is for a graph in memory.

    A batch is a `Data` with `x`, `y` and masks as the graph has them, `edge_index`, `n_id`, `e_id` (the
    edge's position in the snapshot; not of walks), `input_id`, `batch_size`, `num_sampled_nodes`,
    `num_sampled_edges`, `hop` per node, `edge_rank` per edge, and `edge_weight` and `edge_attr` where there
    are any. The seeds are its first `batch_size` nodes.

    Args:
        num_neighbors, sampling, disjoint: see `SnapshotSampler`. With the sampling `random` each pass over
            the loader has other samples, which are the same on every run.
        input_nodes: node indices, a mask, or the name of a split; all nodes without it.
        transform: of each batch.
        kwargs: of PyG's `NodeLoader` and PyTorch's `DataLoader`, such as `batch_size`, `shuffle`,
            `num_workers`, `input_time`.

    Raises:
        GraphInputError: the snapshot does not store what is asked for.
    """
    sampler = SnapshotSampler(snapshot, num_neighbors, sampling, disjoint=disjoint)
    return SnapshotNodeLoader(snapshot, sampler, _input_nodes(snapshot, input_nodes), transform, **kwargs)


def link_neighbor_loader(
    snapshot: Snapshot,
    num_neighbors: Sequence[int],
    edge_label_index: Tensor | NDArray[Any] | None = None,
    *,
    sampling: Sampling | None = None,
    disjoint: bool = True,
    transform: Transform | None = None,
    **kwargs: Any,
) -> SnapshotLinkLoader:
    """What `LinkNeighborLoader` is for a graph in memory.

    Args:
        edge_label_index: integers [2, num_links], between node indices; every edge without it, for which
            16 bytes per edge must fit into memory.
        kwargs: also of PyG's `LinkLoader`, such as `neg_sampling`, `edge_label`, `edge_label_time`.

    Raises:
        GraphInputError: the snapshot does not store what is asked for.
    """
    sampler = SnapshotSampler(snapshot, num_neighbors, sampling, disjoint=disjoint)
    if edge_label_index is None:
        row, col, _ = SnapshotGraphStore(snapshot).coo()
        edge_label_index = torch.stack([row, col])
    return SnapshotLinkLoader(snapshot, sampler, torch.as_tensor(edge_label_index), transform, **kwargs)


def _input_nodes(snapshot: Snapshot, nodes: Tensor | NDArray[Any] | str | None) -> Tensor:
    if nodes is None:
        return torch.arange(snapshot.num_nodes)
    if not isinstance(nodes, str):
        return torch.as_tensor(nodes)
    if snapshot.split is None:
        raise GraphInputError(f"{snapshot.folder}: has no split, so no `{nodes}` nodes")
    parts = [part.name.lower() for part in Split]
    if nodes not in parts:
        raise GraphInputError(f"input_nodes {nodes!r}: a split is `train`, `val` or `test`")
    return torch.from_numpy(np.flatnonzero(snapshot.split == parts.index(nodes)))
