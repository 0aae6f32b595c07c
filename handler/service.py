"""What happens to a batch: requests are read, stored if they ask for it, answered, and written.

Requests come in as bytes and go out as bytes, each with its own status: nothing that one request holds
can harm another, and nothing that a request holds raises.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from handler import metrics
from handler.afterwards import Afterwards
from handler.answers import Row, check_pairs
from handler.cache.store import Store
from handler.errors import MalformedRequest, ModelError, OverTime, RequestError, as_value
from handler.explaining.requests import Asked, ExplainOptions, ExplainRequest, parse_explain_request
from handler.graph.fanout import FanoutPlan
from handler.graph.follower import Follower
from handler.graph.ids import NodeId
from handler.graph.live_graph import LiveGraph
from handler.graph.views import Needs, Source, Views
from handler.guests import described_change
from handler.intake import Accepted, Intake, Submitted
from handler.model.exported import Model
from handler.pipeline import Pipeline
from handler.requests import (
    Options,
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
from handler.standing import gauges_of

_WARM_UP_ROUNDS = 8


class Service:
    """Answers batches of requests from one graph and one model.

    Args:
        source: of the graph.
        model_version: as answers and metrics name it.
        store: of answers, closed with this; none: every answer is computed.
        afterwards: does what no answer needs; at once without it.

    Raises:
        ModelError: graph and model do not fit each other.
    """

    def __init__(
        self,
        source: Source,
        model: Model,
        settings: Settings,
        counters: metrics.Counters,
        model_version: str,
        store: Store | None = None,
        afterwards: Afterwards | None = None,
    ) -> None:
        self._model = model
        self._store = store
        self._settings = settings
        self._counters = counters
        self._model_version = model_version
        self._afterwards = afterwards or Afterwards()
        self._plan = FanoutPlan.of(model.signature.layer_fanouts)
        self._takes_degree = model.signature.takes_degree
        self._max_nodes: int | None = None  # of a forward; not measured yet
        self._views: Views[Pipeline] = source(model.signature.sampling, self._pipeline)
        self._intake = Intake(self._views) if isinstance(self._views, Follower) else None

    def answer(self, bodies: Sequence[bytes | RequestError]) -> list[Response]:
        """One response per request, in order; a request without a usable body comes as its error."""
        with self._counters.timed("parse"):
            requests = [self._parse(body) for body in bodies]
            queries = [
                query for request in requests if isinstance(request, Request) for query in request.queries
            ]
        queries = self._stored(queries)
        rows = self._rows(queries, _pairs(requests))
        with self._counters.timed("encode"):
            responses = [
                encode_error(request)
                if isinstance(request, RequestError)
                else self._respond(request, [next(rows) for _ in request.rows])
                for request in requests
            ]
        self._afterwards.do(partial(self._count, responses))
        return responses

    def explain(self, bodies: Sequence[bytes | RequestError]) -> list[Response]:
        """One response per request for explanations, in order.

        They share the time that the settings allow; those for which none is left are refused, so that other
        requests of a batch do not wait for long.
        """
        deadline_s = time.monotonic() + self._settings.explain_ms / 1000
        with self._counters.timed("explain"):
            requests = [self._parse_explain(body) for body in bodies]
            rows = [self._explained(request, deadline_s) for request in requests]
        responses = []
        for request, found in zip(requests, rows, strict=True):
            if isinstance(request, RequestError):
                responses.append(encode_error(request))
            else:
                responses.append(self._respond_rows(request.is_single, "explanations", found))
        self._afterwards.do(partial(self._count, responses))
        return responses

    def warm_up(self, max_batch_size: int, num_workers: int = 1) -> None:
        """Answer nodes of the graph in every batch size to come, so that no early request is slow.

        Kernels are compiled or loaded, TorchScript specialises, the graph's pages come in, and the memory
        that a forward takes is measured. Nothing of it is counted.

        Args:
            num_workers: processes that share the device's memory.

        Raises:
            ModelError: the model fails on this graph, or gives what its signature does not promise.
        """
        with self._views.reading() as pipeline:
            pipeline.forwards.check()
            # First, since it gives back memory that requests would want again.
            self._max_nodes = pipeline.forwards.measured_max_nodes(
                self._settings.max_bytes_per_forward, num_workers, pipeline.graph.num_nodes
            )
            pipeline.forwards.lower(self._max_nodes)
            nodes = np.linspace(0, pipeline.graph.num_nodes - 1, num=max_batch_size).astype(np.int64)
            ids = pipeline.graph.ids.id_of(nodes)
        queries = [Query(node_id, Options(max_staleness_ms=0)) for node_id in ids]
        scores: tuple[PairReturned, ...] = ("score",)
        sizes = {min(2**power, max_batch_size) for power in range(max_batch_size.bit_length() + 1)}
        for size in sorted(sizes):
            for _ in range(_WARM_UP_ROUNDS):
                rows = list(self._rows(queries[:size], {}, keep=False))
                if self._model.signature.link_score is not None:
                    ends = queries[: size - size % 2]
                    rows += self._rows(ends, dict.fromkeys(range(0, len(ends), 2), scores), keep=False)
                failed = [row for row in rows if isinstance(row, RequestError)]
                if failed:
                    raise ModelError(f"the model fails on this graph: {failed[0]}")
        list(self._rows([Query(node_id, Options()) for node_id in ids], {}, keep=False))
        with self._views.reading() as pipeline:
            pipeline.explain(Asked((queries[0],), ExplainOptions()), time.monotonic())
        self._counters.forget()

    def gauges(self) -> dict[metrics.Metric, float]:
        """How the graph stands now."""
        return gauges_of(self._views.standing())

    def close(self) -> None:
        """Let go of the graph, and of what is stored."""
        self._views.close()
        if self._store is not None:
            self._store.close()

    def _pipeline(self, graph: LiveGraph) -> Pipeline:
        """What answers from a graph, whenever there is another one."""
        pipeline = Pipeline(
            graph,
            self._model,
            self._settings,
            self._counters,
            self._model_version,
            self._store,
            self._afterwards,
        )
        if self._max_nodes is not None:
            pipeline.forwards.lower(self._max_nodes)
        return pipeline

    def _count(self, responses: Sequence[Response]) -> None:
        self._counters.add_batch((int(response.status), response.code) for response in responses)

    def _parse(self, body: bytes | RequestError) -> Request | RequestError:
        if isinstance(body, RequestError):
            return body
        try:
            request = parse_request(body, self._settings.max_nodes_per_request)
            if request.pair_returned is not None:
                check_pairs(self._model.signature, request.pair_returned)
        except RequestError as error:
            return as_value(error)
        return request

    def _parse_explain(self, body: bytes | RequestError) -> ExplainRequest | RequestError:
        if isinstance(body, RequestError):
            return body
        try:
            return parse_explain_request(body, self._settings.max_nodes_per_request)
        except RequestError as error:
            return as_value(error)

    def _explained(
        self, request: ExplainRequest | RequestError, deadline_s: float
    ) -> list[tuple[dict[str, Any], Row]]:
        """What each row of a request is about, and its explanation."""
        if isinstance(request, RequestError):
            return []
        found: list[tuple[dict[str, Any], Row]] = []
        for asked in request.rows:
            if isinstance(asked, RequestError):
                found.append(({"node_id": None}, asked))
                continue
            try:
                if time.monotonic() > deadline_s:
                    raise OverTime(self._settings.explain_ms)
                with self._reading(asked.queries) as pipeline:
                    found.append((asked.named, pipeline.explain(asked, deadline_s)))
            except RequestError as error:
                found.append((asked.named, as_value(error)))
        return found

    def _stored(self, queries: Sequence[Query]) -> list[Query]:
        """The queries, of which those that are to be stored are, and ask for what is then in the graph."""
        storing = [position for position, query in enumerate(queries) if query.store]
        if not storing:
            return list(queries)
        with self._counters.timed("store"):
            if self._intake is None:
                refused = MalformedRequest("this graph does not change: it is a bare snapshot without a log")
                results: Sequence[Accepted | RequestError] = [refused] * len(storing)
            else:
                results = self._intake.accept([self._submitted(queries[position]) for position in storing])
        changed = list(queries)
        for position, result in zip(storing, results, strict=True):
            query = replace(queries[position], described=None)
            if isinstance(result, RequestError):
                changed[position] = replace(query, error=result)
            else:
                least = max(result.last_seq, query.options.min_seq or 0)
                changed[position] = replace(query, options=structs.replace(query.options, min_seq=least))
        return changed

    def _submitted(self, query: Query) -> Submitted:
        described, node_id = query.described, query.node_id
        if described is None or node_id is None or self._intake is None:
            raise AssertionError("only named nodes are stored, in a graph that changes")
        change = described_change(described, node_id, has_time=self._intake.edge_fields.time, now=time.time())
        change = structs.replace(change, request_id=query.request_id)
        # What was said, without the time that was filled in: a repeated request must be known again.
        return Submitted(change, msgspec.json.encode(described))

    def _reading(self, queries: Sequence[Query]) -> AbstractContextManager[Pipeline]:
        """What answers queries, all of which will be asked of the graph as it is then."""
        wanted = max((query.options.min_seq or 0 for query in queries), default=0)
        return self._views.reading(
            wanted, Needs(partial(_needed_nodes, queries), self._plan, degrees=self._takes_degree)
        )

    def _rows(
        self, queries: Sequence[Query], pairs: dict[int, Sequence[PairReturned]], *, keep: bool = True
    ) -> Iterator[Row]:
        """The rows that answer queries, in order: one for each node or pair."""
        try:
            with self._reading(queries) as pipeline:
                rows = pipeline.rows(queries, pairs, keep=keep)
        except RequestError as error:  # the graph is known to be wrong: nobody is answered from it
            ends = {position + 1 for position in pairs}
            return iter([as_value(error)] * (len(queries) - len(ends)))
        return iter([rows[position] for position in sorted(rows)])

    def _respond(self, request: Request, rows: Sequence[Row]) -> Response:
        return self._respond_rows(
            request.is_single, "predictions", list(zip(request.rows, rows, strict=True))
        )

    def _respond_rows(
        self, is_single: bool, name: str, rows: Sequence[tuple[dict[str, Any], Row]]
    ) -> Response:
        """A response of one row, or of several by a name; each comes with what it is about."""
        if is_single:
            (_, row) = rows[0]
            if isinstance(row, RequestError):
                return encode_error(row)
            return encode_answer(row, self._settings.max_response_bytes)
        answered = []
        for named, row in rows:
            if isinstance(row, RequestError):
                self._counters.add(metrics.ERRORS, 1, row.code)
                answered.append(named | error_row(row))
            else:
                answered.append(row)
        return encode_answer({name: answered}, self._settings.max_response_bytes)


def _needed_nodes(queries: Sequence[Query]) -> list[NodeId | None]:
    """The nodes from which samples begin: those that are asked for, and the neighbors of described ones."""
    found = [query.node_id for query in queries]
    for query in queries:
        if query.described is not None:
            found += [neighbor.node_id for neighbor in query.described.edges]
    return found


def _pairs(requests: Sequence[Request | RequestError]) -> dict[int, Sequence[PairReturned]]:
    """Of all requests for pairs the positions of first ends among the queries, and what a row holds."""
    pairs: dict[int, Sequence[PairReturned]] = {}
    start = 0
    for request in requests:
        if isinstance(request, RequestError):
            continue
        stop = start + len(request.queries)
        if request.pair_returned is not None:
            pairs |= dict.fromkeys(range(start, stop, 2), request.pair_returned)
        start = stop
    return pairs
