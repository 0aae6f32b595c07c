"""Requests that change a graph, and their JSON form."""

from __future__ import annotations

import msgspec

from handler.errors import MalformedRequest, TooManyMutations
from handler.requests import NodeId, RequestId


class NodeChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A node that comes: one that is there already stays, and its features are set if any are given.

    Args:
        x: features; all zero without.
    """

    node_id: NodeId
    x: list[float] | None = None


class FeatureChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Features of a node that is there."""

    node_id: NodeId
    x: list[float]


class EdgeRemoval(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An edge that goes; nothing happens if there is none.

    Args:
        time: of edges with the same ends, only those of this time.
    """

    source: NodeId
    target: NodeId
    time: float | None = None


class EdgeAddition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """An edge that comes, with all that the graph knows of edges.

    Args:
        weight: 1 without.
        attr: edge features.
    """

    source: NodeId
    target: NodeId
    weight: float | None = None
    time: float | None = None
    attr: list[float] | None = None


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Mutations that are applied all or not at all, in the order of these lists.

    Args:
        create_missing: nodes that edges name and that are not there are added, with features all zero.
        request_id: the same request under the same id is applied once, however often it comes.
    """

    add_nodes: list[NodeChange] = []
    set_features: list[FeatureChange] = []
    remove_edges: list[EdgeRemoval] = []
    add_edges: list[EdgeAddition] = []
    create_missing: bool = False
    request_id: RequestId | None = None

    @property
    def num_mutations(self) -> int:
        """How many mutations are asked for."""
        return len(self.add_nodes) + len(self.set_features) + len(self.remove_edges) + len(self.add_edges)


class InfoRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`{"info": true}`: what the graph is now."""

    info: bool


_LISTS = ("add_nodes", "set_features", "remove_edges", "add_edges")
_info_decoder = msgspec.json.Decoder(InfoRequest)
_change_decoder = msgspec.json.Decoder(Change)


def parse_change(body: bytes, max_mutations: int) -> Change | InfoRequest:
    """Read one request.

    Raises:
        MalformedRequest: it is no JSON object of one of the forms, or asks for nothing.
        TooManyMutations: it asks for more than `max_mutations`.
    """
    if not body:
        raise MalformedRequest('the request has no body; send a JSON object such as {"add_edges": [...]}')
    try:
        change = _change_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        info = _info(body)
        if info is None:
            raise MalformedRequest(f"the request cannot be read: {error}") from None
        return info
    if not change.num_mutations:
        raise MalformedRequest(
            f"nothing is asked for: give one of {', '.join(f'`{name}`' for name in _LISTS)}"
        )
    if change.num_mutations > max_mutations:
        raise TooManyMutations(change.num_mutations, max_mutations)
    return change


def _info(body: bytes) -> InfoRequest | None:
    try:
        return _info_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def asked(change: Change) -> dict[str, int]:
    """How many mutations of each kind are asked for."""
    return {name: len(getattr(change, name)) for name in _LISTS if getattr(change, name)}
