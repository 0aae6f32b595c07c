"""The pipeline of one batch: parse, look up, sample, gather, run, answer.

Requests come in as bytes and go out as bytes, each with its own status: nothing that one request holds
can harm another, and nothing that a request holds raises.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from handler import metrics
from handler.answers import Composer, Forwarded, Place, Row
from handler.errors import (
    InternalError,
    MalformedRequest,
    ModelError,
    NonFiniteOutput,
    OutOfMemory,
    RequestError,
    TooLargeForMemory,
    UnknownNode,
    in_one_line,
)
from handler.graph.budget import Sampled
from handler.graph.fanout import FanoutPlan
from handler.graph.snapshot import Snapshot
from handler.inputs import ModelInputs
from handler.model.exported import Model, ModelOutput
from handler.model.memory import free_bytes, peak_bytes, release, translated
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

_log = logging.getLogger(__name__)
_WARM_UP_ROUNDS = 8
_MEASURED_NODES = 16_384  # so many that what a forward takes whatever its size does not count
_SHARE_OF_FREE = 0.5
_HEADROOM = 1.25  # forwards differ in shape, and allocators round up


@dataclass(frozen=True)
class _Group:
    """Queries that are sampled by one plan."""

    plan: FanoutPlan
    has_time: bool


@dataclass
class _Seed:
    """A node that is to be computed once, and the positions of all queries that ask for it so."""

    index: int
    as_of: float | None
    positions: list[int]


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
        model: Model,
        settings: Settings,
        counters: metrics.Counters,
        model_version: str,
    ) -> None:
        signature = model.signature
        self._snapshot = snapshot
        self._inputs = ModelInputs(snapshot, signature, settings, model.device)
        self._model = model
        self._settings = settings
        self._counters = counters
        self._full_plan = FanoutPlan.of(signature.layer_fanouts)
        if settings.max_bytes_per_forward:  # until it is measured what a node really takes
            self._inputs.budget.lower(settings.max_bytes_per_forward // self._inputs.node_bytes)
        manifest = snapshot.manifest
        graph = {"snapshot": manifest.snapshot_id, "seq": manifest.seq}
        about = {"model_version": model_version, "graph": graph}
        self._composer = Composer(signature, snapshot.ids, about)

    def answer(self, bodies: Sequence[bytes | RequestError]) -> list[Response]:
        """One response per request, in order; a request without a usable body comes as its error."""
        with self._timed("parse"):
            requests = [self._parse(body) for body in bodies]
            queries = [
                query for request in requests if isinstance(request, Request) for query in request.queries
            ]
        places = self._compute(queries)
        with self._timed("compose"):
            rows = self._rows(requests, queries, places)
        with self._timed("encode"):
            responses = [
                encode_error(request)
                if isinstance(request, RequestError)
                else self._respond(request, [next(rows) for _ in request.rows])
                for request in requests
            ]
        self._count(responses)
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
        self._check_model()
        self._set_budget(num_workers)  # first, since it gives back memory that requests would want again
        nodes = np.linspace(0, self._snapshot.num_nodes - 1, num=max_batch_size).astype(np.int64)
        queries = [Query(node_id, Options()) for node_id in self._snapshot.ids.id_of(nodes)]
        sizes = {min(2**power, max_batch_size) for power in range(max_batch_size.bit_length() + 1)}
        for size in sorted(sizes):
            for _ in range(_WARM_UP_ROUNDS):
                places = self._compute(queries[:size])
                rows = self._compose(queries[:size], dict(enumerate(places)))
                if self._model.signature.link_score is not None:
                    rows |= self._score(queries, places, dict.fromkeys(range(0, size - 1, 2), ("score",)))
                failed = [row for row in rows.values() if isinstance(row, RequestError)]
                if failed:
                    raise ModelError(f"the model fails on this graph: {failed[0]}")
        self._counters.drain()

    def _parse(self, body: bytes | RequestError) -> Request | RequestError:
        if isinstance(body, RequestError):
            return body
        try:
            request = parse_request(body, self._settings.max_nodes_per_request)
            if request.pair_returned is not None:
                self._composer.check_pairs(request.pair_returned)
        except RequestError as error:
            return _as_value(error)
        return request

    def _compute(self, queries: Sequence[Query]) -> list[Place | RequestError]:
        """Where the answer of each query is, in order; equal queries are computed once."""
        places: list[Place | RequestError] = [InternalError()] * len(queries)
        groups: defaultdict[_Group, dict[tuple[int, float | None], _Seed]] = defaultdict(dict)
        with self._timed("look_up"):
            for position, index in enumerate(self._look_up(queries)):
                try:
                    as_of = queries[position].options.as_of
                    group = _Group(self._plan(queries[position], index), as_of is not None)
                    seed = groups[group].setdefault((index, as_of), _Seed(index, as_of, []))
                    seed.positions.append(position)
                except RequestError as error:
                    places[position] = _as_value(error)
        for group, seeds in groups.items():
            self._compute_group(list(seeds.values()), group, places)
        return places

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
        self._composer.check(options)
        return self._full_plan.limited(options.num_hops, options.num_neighbors)

    def _compute_group(
        self, seeds: Sequence[_Seed], group: _Group, places: list[Place | RequestError]
    ) -> None:
        """Run forwards over all seeds, as many at once as fit; of those that fail, over halves.

        So an error ends with the seed that it is about, and the others are answered.
        """
        waiting = [seeds]
        while waiting:
            part = waiting.pop()
            if not part:
                continue
            try:
                sampled = self._sample(part, group)
            except RequestError as error:  # of the first seed
                _give(part[:1], _as_value(error), places)
                waiting.append(part[1:])
                continue
            waiting.append(part[sampled.trees.num_seeds :])
            part = part[: sampled.trees.num_seeds]
            try:
                forward = Forwarded(sampled, self._run(sampled))
            except OutOfMemory:
                self._counters.add(metrics.OUT_OF_MEMORY, 1)
                _log.warning("not enough memory for a forward over %d nodes", len(sampled.trees.node))
                self._inputs.budget.lower(len(sampled.trees.node) // 2)
                release(self._model.device)
                if len(part) == 1:
                    _give(part, TooLargeForMemory(), places)
                waiting += _halves(part)
            except Exception:  # noqa: BLE001 - whatever it is, it ends here: other requests go on
                self._counters.add(metrics.FAILED_FORWARDS, 1)
                _log.exception("a forward over %d seeds failed", len(part))
                waiting += _halves(part)
            else:
                _give_places(part, forward, places)
                self._count_sampled(sampled, [len(seed.positions) for seed in part])

    def _sample(self, seeds: Sequence[_Seed], group: _Group) -> Sampled:
        index = np.array([seed.index for seed in seeds], dtype=np.int64)
        as_of = np.array([seed.as_of for seed in seeds], dtype=np.float64) if group.has_time else None
        with self._timed("sample"):
            return self._inputs.sample(index, group.plan, as_of)

    def _run(self, sampled: Sampled) -> ModelOutput:
        with self._timed("batch"):
            arranged = self._inputs.arrange(sampled)
        with self._timed("gather"), translated():
            given = self._inputs.gather(arranged)
        with self._timed("forward"):
            self._counters.add(metrics.FORWARDS, 1)
            return self._model.run(given)

    def _rows(
        self,
        requests: Sequence[Request | RequestError],
        queries: Sequence[Query],
        places: Sequence[Place | RequestError],
    ) -> Iterator[Row]:
        """The rows of all requests, in order: one for each node or pair."""
        nodes: dict[int, Place | RequestError] = {}
        pairs: dict[int, Sequence[PairReturned]] = {}
        start = 0
        for request in requests:
            if isinstance(request, RequestError):
                continue
            positions = range(start, start + len(request.queries))
            start = positions.stop
            if request.pair_returned is None:
                nodes |= {position: places[position] for position in positions}
            else:
                pairs |= dict.fromkeys(positions[::2], request.pair_returned)
        rows = self._compose(queries, nodes) | self._score(queries, places, pairs)
        return iter([rows[position] for position in sorted(rows)])

    def _compose(
        self, queries: Sequence[Query], places: Mapping[int, Place | RequestError]
    ) -> dict[int, Row]:
        """The rows of nodes, by the positions of their queries."""
        rows: dict[int, Row] = {}
        by_forward: defaultdict[int, list[tuple[int, Place]]] = defaultdict(list)
        for position, place in places.items():
            if isinstance(place, RequestError):
                rows[position] = place
            else:
                by_forward[id(place.forward)].append((position, place))
        for found in by_forward.values():
            composed = self._composer.rows(
                [queries[position] for position, _ in found],
                [place.seed for _, place in found],
                found[0][1].forward,
            )
            rows |= zip([position for position, _ in found], composed, strict=True)
        return rows

    def _score(
        self,
        queries: Sequence[Query],
        places: Sequence[Place | RequestError],
        pairs: Mapping[int, Sequence[PairReturned]],
    ) -> dict[int, Row]:
        """The rows of pairs, by the positions of their first ends."""
        rows: dict[int, Row] = {}
        whole: list[tuple[int, Place, Place]] = []
        for position in pairs:
            source, target = places[position], places[position + 1]
            if isinstance(source, RequestError):
                rows[position] = source
            elif isinstance(target, RequestError):
                rows[position] = target
            else:
                whole.append((position, source, target))
        if not whole:
            return rows
        try:
            scores = self._model.score(
                np.stack([source.embedding for _, source, _ in whole]),
                np.stack([target.embedding for _, _, target in whole]),
            ).tolist()
        except Exception:  # noqa: BLE001 - as in `_compute_group`
            self._counters.add(metrics.FAILED_FORWARDS, 1)
            _log.exception("the scores of %d pairs failed", len(whole))
            return rows | dict.fromkeys((position for position, _, _ in whole), InternalError())
        for (position, source, target), score in zip(whole, scores, strict=True):
            ends = queries[position], queries[position + 1]
            if math.isfinite(score):
                rows[position] = self._composer.pair_row(ends, (source, target), score, pairs[position])
            else:
                rows[position] = NonFiniteOutput([end.node_id for end in ends])
        return rows

    def _count_sampled(self, sampled: Sampled, num_asked: Sequence[int]) -> None:
        """Count each tree as often as it was asked for, though it was computed once."""
        trees = sampled.trees
        asked = np.array(num_asked)
        neighbors = np.add.reduceat(trees.hop == 1, trees.ptr[:-1], dtype=np.int64)
        self._counters.add(metrics.NODES, int(asked.sum()), "live")
        self._counters.add(metrics.NEIGHBORS, int(asked @ neighbors))
        self._counters.add(metrics.EDGES, int(asked @ (np.diff(trees.ptr) - 1)))
        if sampled.truncated:
            self._counters.add(metrics.TRUNCATED, int(asked.sum()))

    def _respond(self, request: Request, rows: Sequence[Row]) -> Response:
        if request.is_single:
            row = rows[0]
            if isinstance(row, RequestError):
                return encode_error(row)
            return encode_answer(row, self._settings.max_response_bytes)
        predictions = []
        for named, row in zip(request.rows, rows, strict=True):
            if isinstance(row, RequestError):
                self._counters.add(metrics.ERRORS, 1, row.code)
                predictions.append(named | error_row(row))
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
        first = np.zeros(1, dtype=np.int64)
        try:
            output = self._run(self._inputs.sample(first, self._full_plan))
            if self._model.signature.link_score is not None:
                self._model.score(output.embedding, output.embedding)
        except (RuntimeError, OutOfMemory) as error:
            raise ModelError(f"the model fails on this graph: {in_one_line(error)}") from error

    def _set_budget(self, num_workers: int) -> None:
        """Let a forward hold as many nodes as its memory allows, by what one was seen to take."""
        device = self._model.device
        budget_bytes = self._settings.max_bytes_per_forward
        if not budget_bytes:
            budget_bytes = int(free_bytes(device) * _SHARE_OF_FREE / num_workers)
        node_bytes = max(self._inputs.node_bytes, int(_HEADROOM * self._measured_node_bytes()))
        self._inputs.budget.lower(budget_bytes // node_bytes)
        _log.info(
            "a forward takes %d bytes per node: at most %d nodes at once",
            node_bytes,
            self._inputs.budget.max_nodes,
        )

    def _measured_node_bytes(self) -> int:
        """What a forward of some size takes of memory for each node."""
        wanted = _MEASURED_NODES
        while True:
            seeds = np.arange(self._snapshot.num_nodes)[: max(1, wanted // self._full_plan.max_tree_nodes)]
            found = len(self._inputs.sample(seeds, self._full_plan).trees.node)
            sampled = self._inputs.sample(np.tile(seeds, max(1, wanted // found)), self._full_plan)
            try:
                self._run(sampled)  # what TorchScript takes to compile is not to be counted
                peak = peak_bytes(self._model.device, lambda: self._run(sampled))  # noqa: B023 - run at once
            except OutOfMemory as error:
                release(self._model.device)
                wanted //= 4
                if not wanted:
                    raise ModelError("there is no memory for a forward over a single node") from error
            else:
                return peak // len(sampled.trees.node)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started_ns = time.perf_counter_ns()
        yield
        self._counters.add(metrics.STAGE_TIME, (time.perf_counter_ns() - started_ns) / 1000, stage)


def _as_value(error: RequestError) -> RequestError:
    """The error without frames, which hold it in turn: a cycle that only a full collection frees."""
    error.__context__ = error.__traceback__ = None
    return error


def _halves(seeds: Sequence[_Seed]) -> list[Sequence[_Seed]]:
    """Both halves of several seeds; nothing of one, which cannot be tried in parts."""
    middle = len(seeds) // 2
    return [seeds[middle:], seeds[:middle]] if middle else []


def _give(seeds: Sequence[_Seed], error: RequestError, places: list[Place | RequestError]) -> None:
    """Answer all queries for some seeds with an error."""
    for seed in seeds:
        for position in seed.positions:
            places[position] = error


def _give_places(seeds: Sequence[_Seed], forward: Forwarded, places: list[Place | RequestError]) -> None:
    """Answer all queries for the seeds of a forward by their places in it."""
    for number, seed in enumerate(seeds):
        place = Place(forward, number)
        for position in seed.positions:
            places[position] = place
