"""A snapshot and what the log says since, as one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from handler.errors import LogCorrupt
from handler.graph.edges import EdgeBlock, EdgeFields
from handler.graph.live_features import FeatureChanges, LiveFeatures, snapshot_changes
from handler.graph.live_ids import LiveIds
from handler.graph.manifest import Manifest
from handler.graph.mutations import Mutations, decode_mutations
from handler.graph.overlay import Overlay
from handler.graph.overlay_kernels import ADD, REMOVE
from handler.graph.recent import RecentNodes
from handler.graph.rows import both_ways
from handler.graph.sampler import Sampler, sampled_order
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.graph.unread import Unread
from handler.log.protocol import Record

_ANONYMOUS_HASH = np.uint64(0x9E3779B97F4A7C15)


class LiveGraph:
    """One graph that changes, read by one strategy.

    Not safe to read while it is changed: whoever shares it locks.

    Args:
        snapshot: from which it starts.
        sampling: whose order the changes are kept in.
        now: the time from which the ages of edges count, in seconds since 1970; none for the clock's.
        is_partial: whether the snapshot has no more of each row than samples reach.
        unread: what of the snapshot is not as it is in the graph; none of what is asked for.

    Raises:
        GraphInputError: the snapshot stores no such order.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        sampling: Sampling | None = None,
        now: Callable[[], float] | None = None,
        *,
        is_partial: bool = False,
        unread: Unread | None = None,
    ) -> None:
        self._now = now
        self.is_partial = is_partial
        self.unread = unread
        self.snapshot = snapshot
        self.seq = snapshot.manifest.seq
        self.sampling = sampling or Sampling()
        self.ids = LiveIds(snapshot.ids)
        self.features = (
            None if snapshot.features is None else LiveFeatures(snapshot.features, snapshot.feature_seq)
        )
        adjacency, manifest = snapshot.adjacency, snapshot.manifest
        strategy = sampled_order(adjacency, self.sampling)
        self.overlay = Overlay(
            adjacency,
            self.ids,
            manifest.orderings()[strategy],
            manifest.rules,
            adjacency.permutations.get(strategy),
        )
        #: Those that the log has touched last.
        self.recent = RecentNodes(both_ends=manifest.rules.undirected)
        #: When new nodes came, in seconds since 1970, in order.
        self.created: list[float] = []

    @property
    def folder(self) -> Path:
        """Of the snapshot."""
        return self.snapshot.folder

    @property
    def manifest(self) -> Manifest:
        """Of the snapshot."""
        return self.snapshot.manifest

    @property
    def num_nodes(self) -> int:
        return len(self.ids)

    @property
    def num_edges(self) -> int:
        return self.overlay.num_edges

    @property
    def nbytes(self) -> int:
        """The memory that changes take."""
        return self.overlay.nbytes + (0 if self.features is None else self.features.nbytes)

    @property
    def edge_fields(self) -> EdgeFields:
        """What is known of each edge."""
        return self.snapshot.edge_fields

    @property
    def feature_changes(self) -> FeatureChanges:
        """Which features were set by which mutation; holds until the next change."""
        return snapshot_changes(None) if self.features is None else self.features.changes

    def created_at(self, node: int) -> float:
        """When a node was added, in seconds since 1970; 0 for one that the graph was built with."""
        if node >= self.snapshot.num_nodes:
            return self.created[node - self.snapshot.num_nodes]
        created = self.snapshot.node_created
        return 0.0 if created is None else float(created[node])

    def sampler(self, sampling: Sampling | None = None) -> Sampler:
        """What samples the graph as it is whenever it is asked; by this graph's own strategy alone."""
        return Sampler(
            self.snapshot.adjacency,
            self.sampling if sampling is None else sampling,
            overlay=self.overlay,
            max_edge_age=self.manifest.rules.max_edge_age,
            now=self._now,
        )

    def apply_record(self, record: Record) -> None:
        """Apply what follows next in the log.

        Raises:
            LogCorrupt: it cannot follow what came so far.
        """
        features = self.features
        mutations = decode_mutations(
            record.data, self.edge_fields, 0 if features is None else features.shape[1]
        )
        if record.first_seq != self.seq + 1 or mutations.first_node != self.num_nodes:
            raise LogCorrupt(
                "log",
                f"mutation {record.first_seq} of a graph of {mutations.first_node} nodes cannot follow"
                f" mutation {self.seq} of {self.num_nodes} nodes",
            )
        self.apply(mutations, record.last_seq)
        self.seq = record.last_seq

    def apply(self, mutations: Mutations, seq: int) -> None:
        """Apply mutations that were checked when they were accepted; `seq` is the last of them."""
        self._apply(mutations, seq)
        self.recent.note(mutations)

    def _apply(self, mutations: Mutations, seq: int, hash_as: np.uint64 | None = None) -> None:
        """Apply mutations, of which a guest's leave no trace.

        Args:
            hash_as: what the samples of new nodes are drawn by, instead of the hashes of their ids.
        """
        if mutations.node_ids:
            self.overlay.add_nodes(list(mutations.node_ids), hash_as)
            self.created += [mutations.created] * len(mutations.node_ids)
            if self.features is not None:
                self.features.add_nodes(len(mutations.node_ids))
        if self.features is not None and len(mutations.featured):
            self.features.set(mutations.featured, mutations.features, seq)
        for operation, edges in ((REMOVE, mutations.removed), (ADD, mutations.added)):
            if len(edges):
                counted = self._counted(edges)
                self.overlay.apply(np.full(len(counted), operation, dtype=np.uint8), counted)

    @contextmanager
    def with_guest(self, mutations: Mutations, *, is_anonymous: bool = False) -> Iterator[None]:
        """The graph with one node more, for the time of a block; it is then as it was.

        Args:
            mutations: the node, perhaps its features, and edges of which it is an end.
            is_anonymous: its id says nothing: its sample is that of every node without a name.
        """
        mark, num_created = self.overlay.mark(), len(self.created)
        self._apply(mutations, self.seq + 1, _ANONYMOUS_HASH if is_anonymous else None)
        try:
            yield
        finally:
            self.overlay.take_back(mark)
            del self.created[num_created:]
            if self.features is not None:
                self.features.drop_last(had_features=len(mutations.featured) > 0)

    def _counted(self, edges: EdgeBlock) -> EdgeBlock:
        """Edges as the rules have them: both ways, without self-loops."""
        rules = self.manifest.rules
        loops = edges.source == edges.target
        if not rules.self_loops and loops.any():
            edges, loops = edges.take(~loops), np.zeros(int((~loops).sum()), dtype=np.bool_)
        return both_ways(edges, loops) if rules.undirected else edges
