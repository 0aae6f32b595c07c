"""Nodes that a request describes: they join the graph while they are computed, and leave no trace."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from handler.changes import Change, EdgeAddition, NodeChange
from handler.errors import MalformedRequest
from handler.graph.ids import NodeId
from handler.graph.live_graph import LiveGraph
from handler.requests import NodeDescription, Query
from handler.resolver import Resolver

_FIRST_ANONYMOUS = -(2**63)


@dataclass(frozen=True)
class Guest:
    """A query for a node that it describes, and its position among all."""

    position: int
    query: Query


def described_change(described: NodeDescription, node_id: NodeId, *, has_time: bool, now: float) -> Change:
    """What adds a described node and its edges to a graph.

    Args:
        has_time: whether edges have times; those that say none are of now.
    """
    edges = [
        EdgeAddition(
            source=neighbor.node_id,
            target=node_id,
            weight=neighbor.weight,
            time=now if neighbor.time is None and has_time else neighbor.time,
            attr=neighbor.attr,
        )
        for neighbor in described.edges
    ]
    return Change(add_nodes=[NodeChange(node_id, described.x)], add_edges=edges)


def waves(guests: Sequence[Guest], graph: LiveGraph) -> Iterator[list[Guest]]:
    """Guests that can be in the graph together, because none is seen by another.

    Where edges count both ways a guest changes the rows of its neighbours: there each is alone.
    """
    waiting = list(guests)
    while waiting:
        wave: list[Guest] = []
        later: list[Guest] = []
        names: set[NodeId] = set()
        for guest in waiting:
            name = guest.query.node_id
            if (wave and graph.manifest.rules.undirected) or name in names:
                later.append(guest)
                continue
            wave.append(guest)
            if name is not None:
                names.add(name)
        yield wave
        waiting = later


@contextmanager
def welcome(graph: LiveGraph, guest: Guest) -> Iterator[int]:
    """The node index of a guest, as long as it is in the graph.

    Raises:
        MalformedRequest: the graph has the node, or cannot have such a one.
        UnknownNode: a neighbour is not there.
    """
    query = guest.query
    described, as_of = query.described, query.options.as_of
    if described is None:
        raise AssertionError("no guest")
    name = query.node_id if query.node_id is not None else _anonymous(graph)
    if type(name) is graph.ids.id_type and graph.ids.index_of([name])[0] >= 0:
        raise MalformedRequest(
            f"{name!r:.80} is in the graph: ask for it by `node_id`, or change it by `store`"
        )
    change = described_change(
        described, name, has_time=graph.edge_fields.time, now=time.time() if as_of is None else as_of
    )
    mutations = Resolver(graph).resolve(change)
    with graph.with_guest(mutations, is_anonymous=query.node_id is None):
        yield mutations.first_node


def _anonymous(graph: LiveGraph) -> NodeId:
    """An id that no node has."""
    number = 0
    while True:
        name: NodeId = f"\0{number}" if graph.ids.id_type is str else _FIRST_ANONYMOUS + number
        if graph.ids.index_of([name])[0] < 0:
            return name
        number += 1
