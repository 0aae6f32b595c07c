"""Requests for explanations, in their JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from handler.errors import MalformedRequest, RequestError, TooManyNodes
from handler.requests import (
    NodeDescription,
    NodeId,
    Options,
    Query,
    SampleOptions,
    checked_query,
    decode,
)

Method = Literal["integrated_gradients", "occlusion"]


class ExplainOptions(SampleOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be said of an explanation.

    Args:
        label: the class whose log-odds are explained; that which is the most probable when absent.
        target: the predicted number that is explained, of a model with several.
        method: how; what the model's format allows when absent.
        top: so many nodes, edges and features at most, the most important first.
    """

    label: str | None = None
    target: str | None = None
    method: Method | None = None
    top: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 20


class _NodeRequest(ExplainOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`{"node_id": 42}`: why a node is answered as it is."""

    node_id: NodeId


class _NodesRequest(ExplainOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`{"node_ids": [...]}`: the same for many; each id is checked on its own."""

    node_ids: list[Any]


class _DescribedRequest(ExplainOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`{"node": {...}}`: the same for a node that the graph does not have."""

    node: NodeDescription


class _PairRequest(ExplainOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`{"pair": [u, v]}`: why a link is scored as it is."""

    pair: tuple[NodeId, NodeId]


class _InstancesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`{"instances": [{...}, ...]}`, KServe V1: many of these, each with options of its own."""

    instances: list[msgspec.Raw]


class _Shape(msgspec.Struct):
    """Which of the forms a request has; everything else in it is checked by that form."""

    node_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    node_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    node: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    pair: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    instances: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class Asked:
    """One node or one pair of nodes to be explained.

    Args:
        queries: of the node, or of both.
    """

    queries: tuple[Query, ...]
    options: ExplainOptions

    @property
    def named(self) -> dict[str, Any]:
        """What it is about, as an answer begins."""
        node_ids = [query.node_id for query in self.queries]
        return {"node_id": node_ids[0]} if len(node_ids) == 1 else {"pair": node_ids}


@dataclass(frozen=True)
class ExplainRequest:
    """One HTTP or gRPC request; a row of it that cannot be read is its error."""

    rows: tuple[Asked | RequestError, ...]
    is_single: bool


_FORMS: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(form)
    for name, form in (
        ("node_id", _NodeRequest),
        ("node_ids", _NodesRequest),
        ("node", _DescribedRequest),
        ("pair", _PairRequest),
        ("instances", _InstancesRequest),
    )
}
_shape_decoder = msgspec.json.Decoder(_Shape)


def parse_explain_request(body: bytes, max_nodes: int) -> ExplainRequest:
    """Read one request.

    Raises:
        MalformedRequest: it is no JSON object of one of the forms.
        TooManyNodes: it names more than `max_nodes` nodes.
    """
    if not body:
        raise MalformedRequest('the request has no body; send a JSON object such as {"node_id": 42}')
    form = _form_of(body)
    rows: tuple[Asked | RequestError, ...]
    if form == "instances":
        rows = tuple(_row(bytes(row)) for row in decode(_FORMS[form], body).instances)
    elif form == "node_ids":
        many = decode(_FORMS[form], body)
        rows = tuple(_asked(many, node_id) for node_id in many.node_ids)
    else:
        return ExplainRequest((_one(form, body),), is_single=True)
    if not rows:
        raise MalformedRequest(f"`{form}` is empty")
    num_nodes = sum(len(row.queries) if isinstance(row, Asked) else 1 for row in rows)
    if num_nodes > max_nodes:
        raise TooManyNodes(num_nodes, max_nodes)
    return ExplainRequest(rows, is_single=False)


def _form_of(body: bytes) -> str:
    shape = decode(_shape_decoder, body)
    present = [name for name in shape.__struct_fields__ if getattr(shape, name) is not msgspec.UNSET]
    if len(present) != 1:
        raise MalformedRequest(
            "expected exactly one of `node_id`, `node_ids`, `node`, `pair` and `instances`, but came "
            + (" and ".join(f"`{name}`" for name in present) or "none")
        )
    return present[0]


def _row(body: bytes) -> Asked | RequestError:
    """One of several instances, or what is wrong with it."""
    try:
        form = _form_of(body)
        if form in {"instances", "node_ids"}:
            return MalformedRequest(f"an instance is one node or pair, not `{form}`")
        return _one(form, body)
    except MalformedRequest as error:
        return error.with_traceback(None)


def _one(form: str, body: bytes) -> Asked:
    request = decode(_FORMS[form], body)
    if form == "pair":
        return Asked(tuple(Query(node_id, _options(request)) for node_id in request.pair), request)
    if form == "node":
        return Asked((Query(request.node.node_id, _options(request), None, request.node),), request)
    return _asked(request, request.node_id)


def _asked(request: ExplainOptions, node_id: Any) -> Asked:
    return Asked((checked_query(node_id, _options(request)),), request)


def _options(request: ExplainOptions) -> Options:
    """How the nodes are sampled."""
    return Options(
        num_hops=request.num_hops,
        num_neighbors=request.num_neighbors,
        as_of=request.as_of,
        min_seq=request.min_seq,
    )
