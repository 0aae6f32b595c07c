"""The pipeline of one batch: parse, look up, sample, gather, run, answer.

Requests come in as bytes and go out as bytes, each with its own status: nothing that one request holds
can harm another, and nothing that a request holds raises.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from handler import metrics
from handler.answers import Composer, Row
from handler.errors import InternalError, MalformedRequest, ModelError, RequestError, UnknownNode
from handler.graph.budget import Sampled
from handler.graph.fanout import FanoutPlan
from handler.graph.sampler import SampledTrees
from handler.graph.snapshot import Snapshot
from handler.inputs import ModelInputs
from handler.model.batch import to_batch
from handler.model.runtime import ModelOutput, Runtime
from handler.requests import (
    Options,
    Query,
    Request,
    Response,
    encode_answer,
    encode_error,
    error_row,
    parse_request,
)
from handler.settings import Settings

_log = logging.getLogger(__name__)
_WARM_UP_ROUNDS = 8


@dataclass(frozen=True)
class _Seed:
    """A query that can be answered, and where its answer belongs."""

    position: int
    query: Query
    index: int


class Service:
    """Answers batches of requests from one graph and one model.

    Args:
        model_version: as answers and metrics name it.

    Raises:
        ModelError: graph and model do not fit each other.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        runtime: Runtime,
        settings: Settings,
        counters: metrics.Counters,
        model_version: str,
    ) -> None:
        self._snapshot = snapshot
        self._inputs = ModelInputs(snapshot, runtime.signature, settings)
        self._runtime = runtime
        self._settings = settings
        self._counters = counters
        self._full_plan = FanoutPlan.of(runtime.signature.layer_fanouts)
        manifest = snapshot.manifest
        graph = {"snapshot": manifest.snapshot_id, "seq": manifest.seq}
        about = {"model_version": model_version, "graph": graph}
        self._composer = Composer(runtime.signature, snapshot.ids, about)

    def answer(self, bodies: Sequence[bytes | RequestError]) -> list[Response]:
        """One response per request, in order; a request without a usable body comes as its error."""
        with self._timed("parse"):
            requests = [self._parse(body) for body in bodies]
            queries = [
                query for request in requests if isinstance(request, Request) for query in request.queries
            ]
        rows = iter(self._answer_queries(queries))
        with self._timed("encode"):
            responses = [
                encode_error(request)
                if isinstance(request, RequestError)
                else self._respond(request, [next(rows) for _ in request.queries])
                for request in requests
            ]
        self._count(responses)
        return responses

    def warm_up(self, max_batch_size: int) -> None:
        """Answer nodes of the graph in every batch size to come, so that no early request is slow.

        Kernels are compiled or loaded, TorchScript specialises, and the graph's pages come in. Nothing
        of it is counted.

        Raises:
            ModelError: the model fails on this graph, or gives what its signature does not promise.
        """
        self._check_model()
        nodes = np.linspace(0, self._snapshot.num_nodes - 1, num=max_batch_size).astype(np.int64)
        queries = [Query(node_id, Options()) for node_id in self._snapshot.ids.id_of(nodes)]
        sizes = {min(2**power, max_batch_size) for power in range(max_batch_size.bit_length() + 1)}
        for size in sorted(sizes):
            for _ in range(_WARM_UP_ROUNDS):
                rows = self._answer_queries(queries[:size])
                failed = [row for row in rows if isinstance(row, RequestError)]
                if failed:
                    raise ModelError(f"the model fails on this graph: {failed[0]}")
        self._counters.drain()

    def _parse(self, body: bytes | RequestError) -> Request | RequestError:
        if isinstance(body, RequestError):
            return body
        try:
            return parse_request(body, self._settings.max_nodes_per_request)
        except RequestError as error:
            return _as_value(error)

    def _answer_queries(self, queries: Sequence[Query]) -> list[Row]:
        """An answer or an error for each query, in order."""
        rows: list[Row] = [InternalError()] * len(queries)
        groups: defaultdict[tuple[FanoutPlan, bool], list[_Seed]] = defaultdict(list)
        with self._timed("look_up"):
            for position, index in enumerate(self._look_up(queries)):
                try:
                    query = queries[position]
                    plan = self._plan(query, index)
                    groups[plan, query.options.as_of is not None].append(_Seed(position, query, index))
                except RequestError as error:
                    rows[position] = _as_value(error)
        for (plan, _), seeds in groups.items():
            done = 0
            while done < len(seeds):
                answered = self._answer_first(seeds[done:], plan)
                for seed, row in zip(seeds[done:], answered, strict=False):
                    rows[seed.position] = row
                done += len(answered)
        return rows

    def _look_up(self, queries: Sequence[Query]) -> list[int]:
        """The node index of each query; -1 without a node id, or one of another type than the graph's."""
        ids = self._snapshot.ids
        usable = [type(query.node_id) is ids.id_type for query in queries]
        node_ids = [query.node_id for query, use in zip(queries, usable, strict=True) if use]
        found = iter(ids.index_of(node_ids).tolist())  # type: ignore[arg-type]  # filtered by type
        return [next(found) if use else -1 for use in usable]

    def _plan(self, query: Query, index: int) -> FanoutPlan:
        """How to sample for a query; raises what is wrong with it."""
        if query.error is not None:
            raise query.error
        if index < 0:
            id_type = self._snapshot.ids.id_type
            if type(query.node_id) is not id_type:
                kinds = {int: "integers", str: "strings"}
                raise MalformedRequest(f"{query.node_id!r:.80}: this graph's node ids are {kinds[id_type]}")
            raise UnknownNode(query.node_id)
        options = query.options
        if options.as_of is not None and not self._inputs.knows_time:
            raise MalformedRequest(
                "as_of needs a model that samples the most recent neighbors;"
                f" this one samples by `{self._inputs.strategy}`"
            )
        if not self._runtime.signature.labels and {"label", "probabilities"} & set(options.returned or ()):
            raise MalformedRequest("this model gives embeddings only, no label or probabilities")
        return self._full_plan.limited(options.num_hops, options.num_neighbors)

    def _answer_first(self, seeds: Sequence[_Seed], plan: FanoutPlan) -> Sequence[Row]:
        """Rows of as many of the first seeds as one forward may hold, and of one at least."""
        index = np.array([seed.index for seed in seeds], dtype=np.int64)
        as_of = None
        if seeds[0].query.options.as_of is not None:
            as_of = np.array([seed.query.options.as_of for seed in seeds], dtype=np.float64)
        held = len(seeds)
        try:
            with self._timed("sample"):
                sampled = self._inputs.sample(index, plan, as_of)
            held = sampled.trees.num_seeds
            output = self._run(sampled.trees)
            with self._timed("compose"):
                rows = self._composer.rows([seed.query for seed in seeds[:held]], sampled, output)
        except RequestError as error:
            return [_as_value(error)]
        except Exception:  # noqa: BLE001 - whatever it is, it ends here: other requests go on
            _log.exception("a forward over %d nodes failed", held)
            return [InternalError()] * held
        self._count_sampled(sampled)
        return rows

    def _count_sampled(self, sampled: Sampled) -> None:
        trees = sampled.trees
        self._counters.add(metrics.NODES, trees.num_seeds, "live")
        self._counters.add(metrics.NEIGHBORS, int(np.count_nonzero(trees.hop == 1)))
        self._counters.add(metrics.EDGES, trees.num_edges)
        if sampled.truncated:
            self._counters.add(metrics.TRUNCATED, 1)

    def _run(self, trees: SampledTrees) -> ModelOutput:
        with self._timed("gather"):
            gathered = self._inputs.gather(trees)
        with self._timed("batch"):
            batch = to_batch(trees, gathered.x, gathered.edge_inputs)
        with self._timed("forward"):
            self._counters.add(metrics.FORWARDS, 1)
            return self._runtime.run(batch)

    def _respond(self, request: Request, rows: Sequence[Row]) -> Response:
        if request.is_single:
            row = rows[0]
            if isinstance(row, RequestError):
                return encode_error(row)
            return encode_answer(row, self._settings.max_response_bytes)
        predictions = []
        for query, row in zip(request.queries, rows, strict=True):
            if isinstance(row, RequestError):
                self._counters.add(metrics.ERRORS, 1, row.code)
                predictions.append({"node_id": query.node_id} | error_row(row))
            else:
                predictions.append(row)
        return encode_answer({"predictions": predictions}, self._settings.max_response_bytes)

    def _count(self, responses: Sequence[Response]) -> None:
        self._counters.add(metrics.BATCHES, 1)
        for response in responses:
            self._counters.add(metrics.REQUESTS, 1, str(response.status.value))
            if response.code != "ok":
                self._counters.add(metrics.ERRORS, 1, response.code)

    def _check_model(self) -> None:
        """Run the model on one node, where a failure can still say what is wrong."""
        signature = self._runtime.signature
        first = np.zeros(1, dtype=np.int64)
        try:
            output = self._run(self._inputs.sample(first, self._full_plan).trees)
        except RuntimeError as error:
            raise ModelError(f"the model fails on this graph: {str(error).splitlines()[-1]}") from error
        wanted = {"embedding": (1, signature.embedding_dim), "logits": (1, len(signature.labels))}
        for name, shape in wanted.items():
            found = getattr(output, name).shape
            if found != shape:
                raise ModelError(
                    f"the model gives {name} of shape {list(found)}, its signature promises {list(shape)}"
                )

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started_ns = time.perf_counter_ns()
        yield
        self._counters.add(metrics.STAGE_TIME, (time.perf_counter_ns() - started_ns) / 1000, stage)


def _as_value(error: RequestError) -> RequestError:
    """The error without frames, which hold it in turn: a cycle that only a full collection frees."""
    error.__context__ = error.__traceback__ = None
    return error
