"""Requests and answers, and their JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import orjson

from handler.cache.similar import Metric
from handler.errors import MalformedRequest, RequestError, ResponseTooLarge, TooManyNodes, Unreadable

Returned = Literal["embedding", "label", "probabilities", "values", "neighbors"]
PairReturned = Literal["score", "probability"]
NodeId = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | str
RequestId = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
_FromZero = Annotated[int, msgspec.Meta(ge=0)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]
_Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
_TopK = Annotated[int, msgspec.Meta(ge=1, le=1000)]
_Request = TypeVar("_Request", bound=msgspec.Struct)


class SampleOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be said of how nodes are sampled.

    Args:
        num_hops: hops to sample, at most the model's layers.
        num_neighbors: neighbours to sample per node, at most the model's largest fan-out.
        max_staleness_ms: how old a stored answer may be; every live answer satisfies it.
        as_of: edges later than this time do not count; needs a graph ordered by time.
        min_seq: a mutation of the graph that must count, with all before it.
    """

    num_hops: _AtLeastOne | None = None
    num_neighbors: _AtLeastOne | None = None
    max_staleness_ms: _NotNegative | None = None
    as_of: float | None = None
    min_seq: _FromZero | None = None


class Options(
    SampleOptions, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"returned": "return"}
):
    """What may be said beside a node.

    Args:
        returned: what the answer holds; when absent, only the similar nodes where there are any asked for,
            else the model's task decides.
        threshold: the least probability with which a label is given, instead of the model's own.
        top_k: how many similar nodes to give; none: it is not asked for any.
        metric: by which they are similar; none for the cosine.
    """

    returned: tuple[Returned, ...] | None = None
    threshold: _Probability | None = None
    top_k: _TopK | None = None
    metric: Metric | None = None

    def __post_init__(self) -> None:
        if self.top_k is None:
            if self.metric is not None:
                raise ValueError("`metric` goes with `top_k`: it says by what nodes are similar")
        elif (self.num_hops, self.num_neighbors, self.as_of) != (None, None, None):
            raise ValueError(
                "`top_k` compares nodes as the model sees them:"
                " it does not go with `num_hops`, `num_neighbors` and `as_of`"
            )


class NodeRequest(Options, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`{"node_id": 42}`: one node, alone or as one of `instances`."""

    node_id: NodeId


class NodesRequest(Options, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`{"node_ids": [...]}`: many nodes with the same options; each id is checked on its own."""

    node_ids: list[Any]


class Neighbor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A neighbour that a described node is computed from, and what the graph knows of their edge.

    Args:
        weight: 1 without.
        time: now, or `as_of`, without.
        attr: edge features.
    """

    node_id: NodeId
    weight: float | None = None
    time: float | None = None
    attr: list[float] | None = None


class NodeDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node that the graph does not have.

    Args:
        node_id: by which its samples are drawn, as they would be if it were stored; none: it has no name.
        x: its features; all zero without.
        neighbors: ids of nodes that have edges to it, or more about them.
    """

    node_id: NodeId | None = None
    x: list[float] | None = None
    neighbors: list[NodeId | Neighbor] = []

    @property
    def edges(self) -> list[Neighbor]:
        """The neighbours, each with what is known of its edge."""
        return [each if isinstance(each, Neighbor) else Neighbor(node_id=each) for each in self.neighbors]


class DescribedRequest(Options, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`{"node": {"x": [...], "neighbors": [...]}}`: a node that the graph does not have.

    Args:
        store: add it to the graph first, with its edges; it needs an id then.
        request_id: the same request under the same id is stored once, however often it comes.
    """

    node: NodeDescription
    store: bool = False
    request_id: RequestId | None = None


class InstancesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`{"instances": [{...}, ...]}`, KServe V1: many nodes, each with options of its own."""

    instances: list[msgspec.Raw]


class PairsRequest(
    SampleOptions, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"returned": "return"}
):
    """`{"pairs": [[u, v], ...]}`: the scores of links from u to v; each pair is checked on its own.

    Args:
        returned: what each answer holds, `score` when absent; `probability` is the score's sigmoid.
    """

    pairs: list[Any]
    returned: tuple[PairReturned, ...] = ("score",)


@dataclass(frozen=True)
class Query:
    """One node that is asked for.

    Args:
        node_id: none of a node without a name, and where there is an error.
        error: what is wrong with the query.
        described: the node, if the graph does not have it.
        store: whether it is to be added to the graph, and under which request id.
    """

    node_id: int | str | None
    options: Options
    error: RequestError | None = None
    described: NodeDescription | None = None
    store: bool = False
    request_id: str | None = None


@dataclass(frozen=True)
class Request:
    """One HTTP or gRPC request: one query, or the rows of `{"predictions": [...]}`.

    Args:
        queries: of pairs, both ends of each pair, one after the other.
        pair_returned: what the answer for a pair holds; none where nodes are asked for.
    """

    queries: tuple[Query, ...]
    is_single: bool
    pair_returned: tuple[PairReturned, ...] | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What each row of the answer is about: its node, or its pair of nodes."""
        node_ids = [query.node_id for query in self.queries]
        if self.pair_returned is None:
            return [{"node_id": node_id} for node_id in node_ids]
        return [{"pair": [u, v]} for u, v in zip(node_ids[::2], node_ids[1::2], strict=True)]


@dataclass(frozen=True)
class Response:
    """What one request is answered with; `code` is `ok` or that of the error in `body`.

    Args:
        unreadable: whether it is because of a part of the graph, not of what answers.
    """

    status: HTTPStatus
    code: str
    body: bytes
    unreadable: bool = False


class _Shape(msgspec.Struct):
    """Which of the forms a request has; everything else in it is checked by that form."""

    node: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    node_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    node_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    instances: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    pairs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_NO_OPTIONS = Options()
_shape_decoder = msgspec.json.Decoder(_Shape)
_node_decoder = msgspec.json.Decoder(NodeRequest)
_described_decoder = msgspec.json.Decoder(DescribedRequest)
_nodes_decoder = msgspec.json.Decoder(NodesRequest)
_instances_decoder = msgspec.json.Decoder(InstancesRequest)
_pairs_decoder = msgspec.json.Decoder(PairsRequest)


def parse_request(body: bytes, max_nodes: int) -> Request:
    """Read one request.

    Raises:
        MalformedRequest: it is no JSON object of one of the forms.
        TooManyNodes: it names more than `max_nodes` nodes; a pair names two, and similar nodes count too.
    """
    try:
        # Most requests are for one node, and no request of another form is one of this.
        node = _node_decoder.decode(body)
        request = Request((Query(node.node_id, node),), is_single=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        request = _parsed(body, max_nodes)
    num_nodes = sum(1 + (query.options.top_k or 0) for query in request.queries)
    if num_nodes > max_nodes:
        raise TooManyNodes(num_nodes, max_nodes)
    return request


def _parsed(body: bytes, max_nodes: int) -> Request:
    if not body:
        raise MalformedRequest('the request has no body; send a JSON object such as {"node_id": 42}')
    shape = decode(_shape_decoder, body)
    present = [name for name in shape.__struct_fields__ if getattr(shape, name) is not msgspec.UNSET]
    if len(present) != 1:
        raise MalformedRequest(
            "expected exactly one of `node_id`, `node_ids`, `node`, `instances` and `pairs`, but came "
            + (" and ".join(f"`{name}`" for name in present) or "none")
        )
    if present == ["node_id"]:
        return Request((_node_query(body),), is_single=True)
    if present == ["node"]:
        return Request((_described_query(body),), is_single=True)
    if present == ["node_ids"]:
        many = decode(_nodes_decoder, body)
        _check_count("node_ids", len(many.node_ids), max_nodes)
        return Request(_nodes_queries(many), is_single=False)
    if present == ["pairs"]:
        pairs = decode(_pairs_decoder, body)
        _check_count("pairs", 2 * len(pairs.pairs), max_nodes)
        return Request(_pair_queries(pairs), is_single=False, pair_returned=pairs.returned)
    rows = decode(_instances_decoder, body).instances
    _check_count("instances", len(rows), max_nodes)
    return Request(tuple(_instance_query(bytes(row)) for row in rows), is_single=False)


def decode(decoder: msgspec.json.Decoder[_Request], body: bytes) -> _Request:
    """Read JSON; what cannot be read is a `MalformedRequest`."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRequest(f"the request cannot be read: {error}") from None


def encode_answer(answer: dict[str, Any], max_bytes: int) -> Response:
    """A successful answer; one larger than `max_bytes` is a `ResponseTooLarge` instead."""
    body = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if len(body) > max_bytes:
        return encode_error(ResponseTooLarge(len(body), max_bytes))
    return Response(HTTPStatus.OK, "ok", body)


def encode_error(error: RequestError) -> Response:
    """A failed answer, with the error's own status."""
    return Response(
        error.status, error.code, orjson.dumps(error_row(error)), unreadable=isinstance(error, Unreadable)
    )


def error_row(error: RequestError) -> dict[str, Any]:
    """An error as a JSON object, the whole answer or one row of it."""
    return {"error": {"code": error.code, "message": error.message}}


def _check_count(field: str, asked: int, allowed: int) -> None:
    if asked == 0:
        raise MalformedRequest(f"`{field}` is empty")
    if asked > allowed:
        raise TooManyNodes(asked, allowed)


def _node_query(body: bytes) -> Query:
    request = decode(_node_decoder, body)
    return Query(request.node_id, request)


def _described_query(body: bytes) -> Query:
    request = decode(_described_decoder, body)
    described = request.node
    if request.store and described.node_id is None:
        raise MalformedRequest("a node that is to be stored needs a `node_id`")
    if request.request_id is not None and not request.store:
        raise MalformedRequest("a `request_id` goes with `store`: nothing else needs one")
    return Query(described.node_id, request, None, described, request.store, request.request_id)


def _instance_query(body: bytes) -> Query:
    try:
        if decode(_shape_decoder, body).node is not msgspec.UNSET:
            return _described_query(body)
        return _node_query(body)
    except MalformedRequest as error:
        return Query(None, _NO_OPTIONS, error)


def _nodes_queries(request: NodesRequest) -> tuple[Query, ...]:
    try:
        msgspec.convert(request.node_ids, list[NodeId])
    except msgspec.ValidationError:
        return tuple(checked_query(node_id, request) for node_id in request.node_ids)
    return tuple(Query(node_id, request) for node_id in request.node_ids)


def checked_query(node_id: Any, options: Options) -> Query:
    """A query for what should be a node id, or for nothing with what is wrong."""
    try:
        return Query(msgspec.convert(node_id, NodeId), options)
    except msgspec.ValidationError as error:
        return Query(None, options, MalformedRequest(f"not a node id: {error}"))


def _pair_queries(request: PairsRequest) -> tuple[Query, ...]:
    """Both ends of each pair, one after the other."""
    options = Options(
        num_hops=request.num_hops,
        num_neighbors=request.num_neighbors,
        as_of=request.as_of,
        min_seq=request.min_seq,
    )
    queries: list[Query] = []
    for pair in request.pairs:
        if isinstance(pair, list) and len(pair) == 2:
            queries += [checked_query(end, options) for end in pair]
        else:
            error = MalformedRequest(f"not a pair of node ids: {pair!r:.80}")
            queries += [Query(None, options, error)] * 2
    return tuple(queries)
