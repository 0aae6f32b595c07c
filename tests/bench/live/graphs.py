"""The graphs that change in these measurements, and the requests that change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeBlock, EdgeFields
from handler.graph.home import GraphHome, write_home
from handler.graph.mutations import Mutations, encode_mutations, split_mutations
from handler.graph.writer import write_snapshot
from handler.log.opening import open_log
from handler.log.protocol import Record
from tests.bench.sampler import PowerLawEdges, power_law_ends

REQUEST_EDGES = 1000
SNAPSHOT_SHARE = 0.9
_RECORDS_AT_ONCE = 64


def int_ids(num_nodes: int) -> NDArray[np.int64]:
    """Ids that say nothing of where a node is, so that they are looked up."""
    return np.arange(num_nodes, dtype=np.int64) * 0x9E37_79B1 + 1_000_003


def str_ids(num_nodes: int) -> list[str]:
    """As one names users."""
    return [f"user-{number}" for number in int_ids(num_nodes).tolist()]


def edge_bodies(
    ids: Any, count: int, seed: int, num_edges: int = REQUEST_EDGES, **options: Any
) -> list[bytes]:
    """`count` requests that each add edges with the degrees of a power-law graph."""
    generator = np.random.default_rng(seed)
    named = ids if isinstance(ids, list) else ids.tolist()
    bodies = []
    for _ in range(count):
        source, target = power_law_ends(generator, num_edges, len(named))
        edges = [
            {"source": named[u], "target": named[v]}
            for u, v in zip(source.tolist(), target.tolist(), strict=True)
        ]
        bodies.append(msgspec.json.encode({"add_edges": edges, **options}))
    return bodies


@dataclass(frozen=True)
class PartOfEdges:
    """Of each block of edges the first `SNAPSHOT_SHARE`, or what is left of it."""

    whole: PowerLawEdges
    is_first: bool
    fields: EdgeFields = EdgeFields()  # noqa: RUF009 - frozen

    def __len__(self) -> int:
        return sum(len(block) for block in self.blocks())

    def blocks(self) -> Iterator[EdgeBlock]:
        for block in self.whole.blocks():
            middle = int(len(block) * SNAPSHOT_SHARE)
            yield block.take(slice(0, middle) if self.is_first else slice(middle, None))


@dataclass(frozen=True)
class TwinGraphs:
    """One graph twice: a snapshot of all, and a home whose snapshot lacks what `later` adds.

    Args:
        whole: the folder of the snapshot of all.
        home: the folder of the home.
        later: int64 [2, num_later], sources and targets.
    """

    whole: Path
    home: Path
    later: NDArray[np.int64]

    @classmethod
    def make(cls, folder: Path, num_edges: int) -> TwinGraphs:
        """Build what is not there yet."""
        edges = PowerLawEdges(num_edges)
        whole, home = folder / f"whole-{num_edges}", folder / f"home-{num_edges}"
        if not whole.exists():
            write_snapshot(whole, GraphArrays("power-law", edges, edges.num_nodes))
        if not home.exists():
            write_home(home, GraphArrays("power-law", PartOfEdges(edges, True), edges.num_nodes))
        blocks = list(PartOfEdges(edges, False).blocks())
        later = [np.concatenate([getattr(block, end) for block in blocks]) for end in ("source", "target")]
        return cls(whole, home, np.array(later, dtype=np.int64))


def additions(ends: NDArray[np.int64], num_nodes: int) -> Mutations:
    """Edges without anything but ends, as mutations of a graph without features."""
    nowhere = np.empty(0, dtype=np.int64)
    return Mutations(
        created=0.0,
        first_node=num_nodes,
        node_ids=[],
        featured=nowhere,
        features=np.empty((0, 0), dtype=np.float32),
        removed=EdgeBlock(nowhere, nowhere, None, np.empty(0)),
        added=EdgeBlock(ends[0], ends[1]),
    )


def fill_log(folder: Path, mutations: Mutations) -> int:
    """Write mutations to the log of a home as if requests had come; returns its last seq."""
    home = GraphHome.read(folder)
    log = open_log(home.log, home.log_folder, home.graph_id)
    try:
        after = seq = log.last_seq()
        records: list[Record] = []
        for part in split_mutations(mutations):
            records.append(Record(seq + 1, seq + len(part), encode_mutations(part)))
            seq += len(part)
            if len(records) == _RECORDS_AT_ONCE:
                log.append(records, [], after)
                records, after = [], seq
        if records:
            log.append(records, [], after)
        return seq
    finally:
        log.close()


def beside(value: float, target: float, form: Callable[[float], str], *, at_most: bool = False) -> list[str]:
    """A value, its target, and whether it is met."""
    met = value <= target if at_most else value >= target
    return [form(value), f"{'<=' if at_most else '>='} {form(target)}", "yes" if met else "NO"]
