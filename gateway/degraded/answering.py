"""Answers requests from the last table of a model version, as its workers would write the answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.degraded.scores import simple_scores
from gateway.degraded.tables import LastAnswers, LastTable, NoTable
from gateway.headers import DEGRADED
from handler.answers import Answered, Place, Row, check_pairs
from handler.cache.writing import now_us
from handler.errors import MalformedRequest, RequestError, UnknownNode, as_value
from handler.graph.fanout import FanoutPlan
from handler.model.output import ModelOutput
from handler.requests import (
    PairReturned,
    Query,
    Request,
    Response,
    encode_answer,
    encode_error,
    error_row,
    parse_request,
)
from handler.settings import Settings

PRECOMPUTED, UNAVAILABLE = "precomputed", "unavailable"
_RETRY_AFTER = {"retry-after": "1"}


class NotPrecomputed(RequestError):
    """No worker can answer, and what is precomputed does not say it either."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "degraded"

    def __init__(self, why: str) -> None:
        super().__init__(f"no worker of this version can answer now, and {why}: try again")


@dataclass(frozen=True)
class Degraded:
    """An answer that no model gave.

    Args:
        status: 200 where at least one row is answered; 503 where none is, because no worker is there.
        body: JSON, as workers write it; rows from the table have `"degraded": true` beside.
        headers: `x-hopserve-degraded: precomputed` or `unavailable`; neither where a worker would have said
            the same.
    """

    status: int
    body: bytes
    headers: dict[str, str]


class DegradedAnswers:
    """Answers from what was precomputed, for versions that cannot answer themselves.

    All of it may be called from several threads.
    """

    def __init__(self, last: LastAnswers) -> None:
        self._last = last

    def answer(self, model: str, version: str, body: bytes) -> Degraded:
        """Answer a request to a model version; raises for nothing that it holds."""
        found = self._last.find(model, version)
        try:
            request = _parsed(found, body)
            if isinstance(found, NoTable):
                raise NotPrecomputed(found.why)
            return _respond(request, _rows(found, request), found.archive.settings)
        except RequestError as error:
            return refused(error)

    def health(self, model: str, version: str) -> Degraded:
        """The answer to a probe, which asks whether the version itself can answer."""
        found = self._last.find(model, version)
        why = found.why if isinstance(found, NoTable) else "what is answered is precomputed"
        return refused(NotPrecomputed(why))


def refused(error: RequestError) -> Degraded:
    """An error as the answer to a whole request."""
    response = encode_error(as_value(error))
    if isinstance(error, NotPrecomputed):
        return _as_degraded(response, {DEGRADED: UNAVAILABLE, **_RETRY_AFTER})
    return _as_degraded(response, {})


def _as_degraded(response: Response, headers: dict[str, str]) -> Degraded:
    return Degraded(response.status.value, response.body, headers)


def _parsed(found: LastTable | NoTable, body: bytes) -> Request:
    archive = found.archive
    settings = Settings(graph="") if archive is None else archive.settings
    request = parse_request(body, settings.max_nodes_per_request)
    if archive is not None and request.pair_returned is not None:
        check_pairs(archive.signature, request.pair_returned)
    return request


def _respond(request: Request, rows: Sequence[Row], settings: Settings) -> Degraded:
    given = [row for row in rows if not isinstance(row, RequestError)]
    missing = [row for row in rows if isinstance(row, NotPrecomputed)]
    if not given and missing:
        return refused(missing[0])
    if request.is_single:
        (row,) = rows
        if isinstance(row, RequestError):
            return refused(row)
        response = encode_answer(row, settings.max_response_bytes)
    else:
        named = zip(request.rows, rows, strict=True)
        predictions = [
            about | error_row(row) if isinstance(row, RequestError) else row for about, row in named
        ]
        response = encode_answer({"predictions": predictions}, settings.max_response_bytes)
    marked = given and response.status == HTTPStatus.OK
    return _as_degraded(response, {DEGRADED: PRECOMPUTED} if marked else {})


def _rows(last: LastTable, request: Request) -> list[Row]:
    """A row for each node or pair."""
    queries = request.queries
    places = _places(last, queries)
    if request.pair_returned is not None:
        return _pair_rows(last, request, places)
    rows: list[Row] = [NotPrecomputed("")] * len(queries)
    found: list[tuple[int, Place]] = []
    for position, place in enumerate(places):
        if isinstance(place, RequestError):
            rows[position] = place
        else:
            found.append((position, place))
    if found:
        composed = last.composer.rows(
            [queries[position] for position, _ in found],
            [place.seed for _, place in found],
            found[0][1].among,
        )
        for (position, _), row in zip(found, composed, strict=True):
            rows[position] = row if isinstance(row, RequestError) else row | _marked(last)
    return rows


def _pair_rows(last: LastTable, request: Request, places: Sequence[Place | RequestError]) -> list[Row]:
    rows: list[Row] = []
    returned = request.pair_returned or ()
    for first in range(0, len(places), 2):
        source, target = places[first], places[first + 1]
        if isinstance(source, RequestError):
            rows.append(source)
        elif isinstance(target, RequestError):
            rows.append(target)
        else:
            rows.append(_pair_row(last, request.queries[first : first + 2], (source, target), returned))
    return rows


def _pair_row(
    last: LastTable, ends: Sequence[Query], places: tuple[Place, Place], returned: Sequence[PairReturned]
) -> Row:
    source, target = places
    kind = last.archive.signature.link_score
    if kind is None or kind == "head":
        return NotPrecomputed("only the model itself can score pairs")
    score = float(simple_scores(kind, source.embedding[None], target.embedding[None])[0])
    if not math.isfinite(score):
        return NotPrecomputed("the score of this pair is not finite")
    return last.composer.pair_row(ends, places, score, returned) | _marked(last)


def _marked(last: LastTable) -> dict[str, Any]:
    """What a row says beside: that it is of the table's snapshot, whatever came since."""
    manifest = last.table.manifest
    return {"graph": {"snapshot": manifest.snapshot_id, "seq": manifest.seq}, "degraded": True}


def _places(last: LastTable, queries: Sequence[Query]) -> list[Place | RequestError]:
    """Where the answer for each query is among rows of the table, or why there is none."""
    places: list[Place | RequestError] = []
    index = _look_up(last, queries)
    rows = last.table.rows(np.maximum(index, 0))
    age_ms = np.maximum(0, now_us() - rows.computed_us) // 1000
    split = last.archive.signature.embedding_dim
    answered = Answered(
        ModelOutput(rows.output[:, :split], rows.output[:, split:]),
        rows.num_nodes,
        None,
        "precomputed",
        rows.seq,
        age_ms,
    )
    usable = (rows.fingerprint != 0) & np.isfinite(rows.output).all(axis=1)
    plan = FanoutPlan.of(last.archive.signature.layer_fanouts)
    for number, query in enumerate(queries):
        try:
            _check(last, query, plan, int(age_ms[number]))
            if index[number] < 0:
                raise _unknown(last, query)
            if not usable[number]:
                raise NotPrecomputed("nothing is precomputed for this node")
            places.append(Place(answered, number))
        except RequestError as error:
            places.append(as_value(error))
    return places


def _look_up(last: LastTable, queries: Sequence[Query]) -> NDArray[np.int64]:
    """int64 [len(queries)]: node indices, -1 where there is no such node."""
    ids = last.graph.snapshot.ids
    places = [place for place, query in enumerate(queries) if type(query.node_id) is ids.id_type]
    node_ids = [node_id for place in places if (node_id := queries[place].node_id) is not None]
    index = np.full(len(queries), -1, dtype=np.int64)
    index[places] = ids.index_of(node_ids)
    return index


def _unknown(last: LastTable, query: Query) -> RequestError:
    if last.graph.grows:  # by nodes that only workers know of
        return NotPrecomputed("nothing is precomputed for a node with this id")
    return UnknownNode(query.node_id)


def _check(last: LastTable, query: Query, plan: FanoutPlan, age_ms: int) -> None:
    """Raise what is wrong with a query, as a worker would, or what a table cannot tell."""
    if query.error is not None:
        raise query.error
    options = query.options
    if query.described is None:
        _check_type(last, query)
    last.composer.check(options)
    limited = plan.limited(options.num_hops, options.num_neighbors)
    if query.described is not None:
        raise NotPrecomputed("only the model itself can answer for a node that is described")
    if options.top_k is not None:
        raise NotPrecomputed("similar nodes are compared by the model itself")
    if options.as_of is not None or limited != plan:
        raise NotPrecomputed("with `num_hops`, `num_neighbors` or `as_of` only the model itself can answer")
    if "neighbors" in (options.returned or ()):
        raise NotPrecomputed("neighbors are sampled only by workers")
    _check_age(last, query, age_ms)


def _check_age(last: LastTable, query: Query, age_ms: int) -> None:
    options, seq = query.options, last.table.manifest.seq
    if options.min_seq is not None and options.min_seq > seq:
        raise NotPrecomputed(f"min_seq is {options.min_seq}, but precomputed answers hold up to {seq} only")
    allowed = options.max_staleness_ms
    if allowed is None and last.archive.settings.max_staleness_ms == 0:
        allowed = 0.0  # this version always asks its model
    if allowed is not None and (allowed == 0 or age_ms > allowed):
        raise NotPrecomputed(f"precomputed answers are {age_ms} ms old, but {allowed:g} are allowed")


def _check_type(last: LastTable, query: Query) -> None:
    id_type = last.graph.snapshot.ids.id_type
    if type(query.node_id) is not id_type:
        kinds = {int: "integers", str: "strings"}
        raise MalformedRequest(f"{query.node_id!r:.80}: this graph's node ids are {kinds[id_type]}")
