"""Turns edges into rows of ordered in-neighbours, in a memory that does not grow with them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph.adjacency import Adjacency
from handler.graph.edges import EdgeBlock, EdgeFields, Edges, EdgeSpool, index_dtype
from handler.graph.ids import NodeIds
from handler.graph.ordering import Ordering, RowOrderer, check_weights
from handler.graph.progress import SILENT, Progress
from handler.graph.row_kernels import count_edges
from handler.graph.rules import EdgeRules

PART_EDGES = 1 << 22  # a part takes about 80 bytes an edge while it is ordered


@dataclass
class EdgeCounts:
    """What became of the edges; `num_duplicates` counts those that were merged into another."""

    num_read: int = 0
    num_self_loops_dropped: int = 0
    num_duplicates: int = 0
    num_edges: int = 0


@dataclass(frozen=True)
class OrderedRows:
    """The in-neighbours of some nodes that follow one another, ordered.

    Args:
        degree: int64 [num_rows], in-neighbours per node.
        edges: the edges of one row after the other.
    """

    degree: NDArray[np.int64]
    edges: EdgeBlock


@dataclass(frozen=True)
class _Parts:
    """Nodes cut into ranges of few edges: `bounds` [num_parts + 1] of nodes, `starts` of their edges."""

    bounds: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass
class RowBuilder:
    """Reads edges twice, first to count and then to deal them out, and orders them part by part.

    Args:
        edges: may be larger than memory.
        num_nodes: the edges' ends must be 0 to num_nodes - 1.
        orderer: of the rows.
        work: where edges that do not fit into one part wait, in a folder that is removed.
        part_edges: edges that are ordered at once.
    """

    edges: Edges
    num_nodes: int
    orderer: RowOrderer
    rules: EdgeRules
    work: Path | None = None
    progress: Progress = SILENT
    part_edges: int = field(default_factory=lambda: PART_EDGES)
    counts: EdgeCounts = field(default_factory=EdgeCounts)

    @property
    def fields(self) -> EdgeFields:
        """What the built edges have: sums are weights, also where there were none."""
        given = self.edges.fields
        weight = given.weight or self.rules.duplicates == "sum"
        return EdgeFields(weight, given.time, given.attr_dim, given.attr_dtype)

    def rows(self) -> Iterator[OrderedRows]:
        """All rows, in the order of the nodes.

        Raises:
            GraphInputError: an end is no node, a weight or time is not finite or does not suit the order.
            OSError: the disk is full.
        """
        degree = np.zeros(self.num_nodes, dtype=np.int64)
        with self.progress.bar("counting edges", len(self.edges), "edge") as advance:
            for block in self.edges.blocks():
                _check_block(block, self.num_nodes)
                check_weights(self.orderer.ordering, block.weight)
                count_edges(self._counted(block, note=True).target, degree)
                advance(len(block))
        num_edges = int(degree.sum())
        if num_edges <= self.part_edges:
            kept = [self._counted(block) for block in self.edges.blocks()]
            yield self._ordered(0, self.num_nodes, _concatenate([*kept, _no_edges(self.edges.fields)]))
            return
        parts = _cut(degree, self.part_edges)
        del degree
        with tempfile.TemporaryDirectory(prefix="parts-", dir=self.work) as folder:
            spool = EdgeSpool(Path(folder), self.edges.fields, index_dtype(self.num_nodes))
            try:
                self._deal(parts, spool)
                yield from self._order_parts(parts, spool)
            finally:
                spool.close()

    def _counted(self, block: EdgeBlock, *, note: bool = False) -> EdgeBlock:
        """The block as the rules have it; `note` adds it to the counts."""
        if note:
            self.counts.num_read += len(block)
        loops = block.source == block.target
        if not self.rules.self_loops and loops.any():
            if note:
                self.counts.num_self_loops_dropped += int(loops.sum())
            block, loops = block.take(~loops), np.zeros(int((~loops).sum()), dtype=np.bool_)
        return both_ways(block, loops) if self.rules.undirected else block

    def _deal(self, parts: _Parts, spool: EdgeSpool) -> None:
        cursor = parts.starts[:-1].copy()
        with self.progress.bar("sorting edges by node", len(self.edges), "edge") as advance:
            for read in self.edges.blocks():
                block = self._counted(read)
                part = np.searchsorted(parts.bounds, block.target, side="right") - 1
                order = np.argsort(part.astype(np.uint16 if len(cursor) < 2**16 else np.int64), kind="stable")
                sorted_block, sizes = block.take(order), np.bincount(part, minlength=len(cursor))
                start = 0
                for place in np.flatnonzero(sizes):
                    end = start + int(sizes[place])
                    spool.write_at(int(cursor[place]), sorted_block.take(slice(start, end)))
                    cursor[place] += end - start
                    start = end
                advance(len(read))
        spool.resize(int(parts.starts[-1]))

    def _order_parts(self, parts: _Parts, spool: EdgeSpool) -> Iterator[OrderedRows]:
        with self.progress.bar("ordering neighbors", len(spool), "edge") as advance:
            for place in range(len(parts.bounds) - 1):
                start, end = int(parts.starts[place]), int(parts.starts[place + 1])
                first, last = int(parts.bounds[place]), int(parts.bounds[place + 1])
                yield self._ordered(first, last, spool.read(start, end))
                advance(end - start)

    def _ordered(self, first: int, last: int, block: EdgeBlock) -> OrderedRows:
        kept, degree, sums = self.orderer.merge_rows(
            first,
            (block.target - first).astype(np.int32),
            last - first,
            block.source.astype(index_dtype(self.num_nodes), copy=False),
            block.weight,
            block.time,
            summed=self.rules.duplicates == "sum",
        )
        edges = block.take(kept)
        if self.rules.duplicates == "sum":
            edges = EdgeBlock(edges.source, edges.target, sums, edges.time, edges.attr)
        self.counts.num_duplicates += len(block) - len(kept)
        self.counts.num_edges += len(kept)
        return OrderedRows(degree, edges)


def ordered_adjacency(
    edges: Edges, ids: NodeIds, ordering: Ordering | None = None, rules: EdgeRules | None = None
) -> Adjacency:
    """The rows of a graph that is small enough to stay in memory."""
    ordering = ordering or Ordering("seeded")
    rules = rules or EdgeRules()
    orderer = RowOrderer(ordering, ids.hashes(), ids.ranks(), multigraph=rules.multigraph)
    builder = RowBuilder(edges, len(ids), orderer, rules, part_edges=len(edges) * 2)
    (rows,) = builder.rows()
    block = rows.edges
    indptr = np.concatenate([[0], np.cumsum(rows.degree)])
    return Adjacency(indptr, block.source, block.weight, block.time, block.attr, ordering)


def _check_block(block: EdgeBlock, num_nodes: int) -> None:
    for ends in (block.source, block.target):
        if len(ends) and (ends.min() < 0 or ends.max() >= num_nodes):
            worst = int(ends.max()) if ends.max() >= num_nodes else int(ends.min())
            raise GraphInputError(f"edge_index names node {worst}, but the nodes are 0 to {num_nodes - 1}")
    for name, values in block.columns().items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values).reshape(len(values), -1).all(axis=1)))
            raise GraphInputError(
                f"the {_SPOKEN[name]} of the edge from node {block.source[bad]} to node {block.target[bad]}"
                " is NaN or infinite"
            )


_SPOKEN = {"weight": "weight", "time": "time", "attr": "feature vector"}


def both_ways(block: EdgeBlock, loops: NDArray[np.bool_]) -> EdgeBlock:
    """Each edge and then its reverse, so that both came when the edge did; but of self-loops none."""
    line = np.repeat(np.arange(len(block)), np.where(loops, 1, 2))
    reverse = np.concatenate([[False], line[1:] == line[:-1]]) if len(line) else np.zeros(0, dtype=np.bool_)
    twice = block.take(line)
    return replace(
        twice,
        source=np.where(reverse, twice.target, twice.source),
        target=np.where(reverse, twice.source, twice.target),
    )


def _no_edges(fields: EdgeFields) -> EdgeBlock:
    """A block that has all columns and no edge, for graphs without any."""
    ends = np.empty(0, dtype=np.int32)
    return EdgeBlock(
        ends,
        ends,
        np.empty(0, dtype=np.float32) if fields.weight else None,
        np.empty(0) if fields.time else None,
        np.empty((0, fields.attr_dim), dtype=fields.attr_dtype) if fields.attr_dim else None,
    )


def _concatenate(blocks: list[EdgeBlock]) -> EdgeBlock:
    columns = [block.columns() for block in blocks]
    return EdgeBlock(**{name: np.concatenate([each[name] for each in columns]) for name in columns[0]})


def _cut(degree: NDArray[np.int64], part_edges: int) -> _Parts:
    """Ranges of nodes with at most `part_edges` edges; a node with more has a range to itself."""
    ends = np.cumsum(degree)
    bounds = [0]
    while bounds[-1] < len(degree):
        before = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        fits = int(np.searchsorted(ends, before + part_edges, side="right"))
        bounds.append(min(max(fits, bounds[-1] + 1), len(degree)))
    starts = [0, *(int(ends[bound - 1]) for bound in bounds[1:])]
    return _Parts(np.array(bounds), np.array(starts))
