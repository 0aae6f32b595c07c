"""From queries to rows, on one graph as it is at one moment: look up, sample, gather, run, compose."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from handler import metrics
from handler.afterwards import Afterwards
from handler.answers import Composer, Place, Row
from handler.cache.store import Store
from handler.errors import (
    InternalError,
    MalformedRequest,
    NonFiniteOutput,
    NotFresh,
    OutOfMemory,
    RequestError,
    TooLargeForMemory,
    UnknownNode,
    Unreadable,
    as_value,
)
from handler.explaining.answers import explained_row
from handler.explaining.explainer import Explainer
from handler.explaining.requests import Asked
from handler.forwards import Forwards, Group, Seed, no_places
from handler.graph.fanout import FanoutPlan
from handler.graph.live_graph import LiveGraph
from handler.graph.unread import Unread
from handler.guests import Guest, waves, welcome
from handler.inputs import ModelInputs
from handler.model.exported import Model
from handler.model.memory import release
from handler.newcomers import Newcomers
from handler.requests import PairReturned, Query
from handler.settings import Settings
from handler.similar import SimilarNodes
from handler.stored import StoredAnswers

_log = logging.getLogger(__name__)


class Pipeline:
    """Answers queries from one graph by one model.

    Args:
        model_version: as answers name it.
        store: of answers; none: every answer is computed.
        afterwards: does what no answer needs.

    Raises:
        ModelError: graph and model do not fit each other.
    """

    def __init__(
        self,
        graph: LiveGraph,
        model: Model,
        settings: Settings,
        counters: metrics.Counters,
        model_version: str,
        store: Store | None,
        afterwards: Afterwards,
    ) -> None:
        signature = model.signature
        self.graph = graph
        self._model = model
        self._counters = counters
        self._inputs = ModelInputs(graph, signature, settings, model.device, graph.unread)
        self._full_plan = FanoutPlan.of(signature.layer_fanouts)
        self._proven = Group(self._full_plan, has_time=False, max_staleness_ms=None)
        self.forwards = Forwards(self._inputs, model, counters, afterwards)
        if settings.max_bytes_per_forward:  # until it is measured what a node really takes
            self.forwards.lower(settings.max_bytes_per_forward // self._inputs.node_bytes)
        self._composer = Composer(signature, graph, model_version)
        self._stored = (
            None
            if store is None
            else StoredAnswers(store, graph, self._inputs, signature, counters, afterwards)
        )
        self._explainer = Explainer(self._inputs, model)
        self._newcomers = Newcomers(graph, self._inputs, signature, settings, store, counters)
        self._similar = SimilarNodes(graph, store, settings.similar_recent, counters)
        self._max_staleness_ms = settings.max_staleness_ms

    def rows(
        self, queries: Sequence[Query], pairs: Mapping[int, Sequence[PairReturned]], *, keep: bool = True
    ) -> dict[int, Row]:
        """The rows that answer queries, by their positions.

        Args:
            pairs: where a query and the next one are the ends of a pair, and what its one row holds.
            keep: whether what is computed is stored.
        """
        known = [position for position, query in enumerate(queries) if query.described is None]
        places = self._compute(queries, known, keep=keep)
        ends = {position + step for position in pairs for step in (0, 1)}
        with self._counters.timed("compose"):
            alone = {position: places[position] for position in known if position not in ends}
            rows = self._compose(queries, alone) | self._score(queries, places, pairs)
        if len(known) < len(queries):
            rows |= self._described_rows(queries, places)
        self._similar.add(
            queries, places, rows, lambda asked: self._compute(asked, range(len(asked)), keep=keep)
        )
        return rows

    def explain(self, asked: Asked, deadline_s: float) -> Row:
        """Why one node, or one pair of nodes, is answered as it is.

        Args:
            deadline_s: by the monotonic clock; see `Explainer.explain`.
        """
        started_s = time.monotonic()
        try:
            with ExitStack() as joined:
                index = np.array([self._place(query, joined) for query in asked.queries])
                options = asked.queries[0].options
                plan = self._full_plan.limited(options.num_hops, options.num_neighbors)
                found = self._explainer.explain(index, plan, options.as_of, asked.options, deadline_s)
                row = explained_row(found, self.graph, asked.options.top)
        except RequestError as error:
            return as_value(error)
        except OutOfMemory:
            self._counters.add(metrics.OUT_OF_MEMORY, 1)
            release(self._model.device)
            return TooLargeForMemory()
        except Exception:  # noqa: BLE001 - whatever it is, it ends here: other requests go on
            _log.exception("an explanation failed")
            return InternalError()
        if not math.isfinite(found.score):
            return NonFiniteOutput(asked.named)
        self._counters.add(metrics.EXPLANATIONS, 1, found.method)
        num_nodes = len(found.subject.trees.node)
        sampled = {
            "nodes": num_nodes,
            "edges": found.subject.trees.num_edges,
            "truncated": found.subject.sampled.truncated,
        }
        took_ms = round((time.monotonic() - started_s) * 1000, 3)
        return asked.named | row | self._composer.about("live") | {"sampled": sampled, "took_ms": took_ms}

    def _place(self, query: Query, joined: ExitStack) -> int:
        """The node index of a query; a node that it describes joins the graph for as long as is asked."""
        if query.described is None:
            (index,) = self._look_up([query])
            self._plan(query, index)
            return index
        self._plan(query, 0)
        return joined.enter_context(welcome(self.graph, Guest(0, query)))

    def _compute(
        self, queries: Sequence[Query], positions: Sequence[int], *, keep: bool
    ) -> list[Place | RequestError]:
        """Where the answers of the queries at these positions are; equal queries are computed once."""
        places = no_places(len(queries))
        groups: defaultdict[Group, dict[tuple[int, float | None], Seed]] = defaultdict(dict)
        now = time.time()
        last: Group | None = None
        with self._counters.timed("look_up"):
            asked = [queries[position] for position in positions]
            for position, query, index in zip(positions, asked, self._look_up(asked), strict=True):
                try:
                    group = self._group(query, index, now)
                    if group is not last:  # most are the same one: hashing costs more than the rest
                        last, seeds = group, groups[group]
                    as_of = query.options.as_of
                    if (seed := seeds.get((index, as_of))) is None:
                        seed = seeds[index, as_of] = Seed(index, as_of, [], query.node_id)
                    seed.positions.append(position)
                except RequestError as error:
                    places[position] = as_value(error)
        for group, of_group in groups.items():
            self._answer(list(of_group.values()), group, places, keep=keep)
        return places

    def _answer(
        self, seeds: Sequence[Seed], group: Group, places: list[Place | RequestError], *, keep: bool
    ) -> None:
        """Write where the answers for seeds are to `places`: from the store, or else computed."""
        if group.source == "fallback":
            self._newcomers.give_mean(seeds, places)
        elif self._stored is None:
            self.forwards.compute(seeds, group, places)
        else:
            seeds = self._stored.answer(seeds, group, places)
            computed = self.forwards.compute(seeds, group, places)
            if keep and computed:
                with self._counters.timed("keep"):
                    self._stored.keep(computed, group)

    def _look_up(self, queries: Sequence[Query]) -> list[int]:
        """The node index of each query; -1 without a node id, or one of another type than the graph's."""
        ids = self.graph.ids
        usable = [type(query.node_id) is ids.id_type for query in queries]
        node_ids = [query.node_id for query, use in zip(queries, usable, strict=True) if use]
        found = iter(ids.index_of(node_ids).tolist())  # type: ignore[arg-type]  # filtered by type
        return [next(found) if use else -1 for use in usable]

    def _plan(self, query: Query, index: int) -> FanoutPlan:
        """How to sample for a query; raises what is wrong with it."""
        if query.error is not None:
            raise query.error
        options = query.options
        if options.min_seq is not None and options.min_seq > self.graph.seq:
            raise NotFresh(options.min_seq, self.graph.seq)
        if self.graph.unread is not None:
            self._check_readable(query, self.graph.unread)
        if index < 0:
            id_type = self.graph.ids.id_type
            if type(query.node_id) is not id_type:
                kinds = {int: "integers", str: "strings"}
                raise MalformedRequest(f"{query.node_id!r:.80}: this graph's node ids are {kinds[id_type]}")
            raise UnknownNode(query.node_id)
        if options.as_of is not None and self.graph.is_partial:
            raise MalformedRequest(
                "as_of needs whole rows, of which a graph in a cluster gives the first edges"
            )
        if options.as_of is not None and not self._inputs.knows_time:
            raise MalformedRequest(
                "as_of needs a model that samples the most recent neighbors;"
                f" this one samples by `{self._inputs.strategy}`"
            )
        self._composer.check(options)
        return self._full_plan.limited(options.num_hops, options.num_neighbors)

    def _check_readable(self, query: Query, unread: Unread) -> None:
        """Refuse what is asked of nodes that cannot be looked up, and guests whose place is not known.

        Where edges count both ways a guest joins its neighbors' rows, in an order by ids that may be unread.
        """
        described = query.described
        neighbors = [] if described is None else [neighbor.node_id for neighbor in described.edges]
        if not unread.ids.isdisjoint([query.node_id, *neighbors]):
            raise Unreadable(unread.why)
        if neighbors and self.graph.manifest.rules.undirected:
            known = [each for each in neighbors if type(each) is self.graph.ids.id_type]
            index = self.graph.ids.index_of(known)
            self._inputs.check_readable(index[index >= 0], self._full_plan.limited(1, None))

    def _group(self, query: Query, index: int, now: float) -> Group:
        """How a node is to be answered; raises what is wrong with the query."""
        plan, options = self._plan(query, index), query.options
        allowed = self._max_staleness_ms if options.max_staleness_ms is None else options.max_staleness_ms
        if options.as_of is not None or plan is not self._full_plan or allowed == 0:
            return Group(plan, options.as_of is not None)
        if (group := self._newcomers.group(index, now)) is not None:
            return group
        if options.min_seq is not None or "neighbors" in (options.returned or ()):
            allowed = None  # an older answer could not tell
        return self._proven if allowed is None else Group(plan, has_time=False, max_staleness_ms=allowed)

    def _described_rows(self, queries: Sequence[Query], places: list[Place | RequestError]) -> dict[int, Row]:
        """The rows of nodes that the graph does not have, which join it for as long as they are computed."""
        rows: dict[int, Row] = {}
        guests = [
            Guest(position, query) for position, query in enumerate(queries) if query.described is not None
        ]
        for wave in waves(guests, self.graph):
            with ExitStack() as joined:
                rows |= self._rows_of_wave(queries, wave, joined, places)
        return rows

    def _rows_of_wave(
        self,
        queries: Sequence[Query],
        wave: Sequence[Guest],
        joined: ExitStack,
        places: list[Place | RequestError],
    ) -> Iterator[tuple[int, Row]]:
        groups: defaultdict[Group, list[Seed]] = defaultdict(list)
        for guest in wave:
            as_of = guest.query.options.as_of
            try:
                plan = self._plan(guest.query, 0)
                seed = Seed(joined.enter_context(welcome(self.graph, guest)), as_of, [guest.position])
                groups[Group(plan, as_of is not None)].append(seed)
            except RequestError as error:
                places[guest.position] = as_value(error)
        for group, seeds in groups.items():
            self.forwards.compute(seeds, group, places)
        composed = self._compose(queries, {guest.position: places[guest.position] for guest in wave})
        return iter(composed.items())

    def _compose(
        self, queries: Sequence[Query], places: Mapping[int, Place | RequestError]
    ) -> dict[int, Row]:
        """The rows of nodes, by the positions of their queries."""
        rows: dict[int, Row] = {}
        by_answered: defaultdict[int, list[tuple[int, Place]]] = defaultdict(list)
        for position, place in places.items():
            if isinstance(place, RequestError):
                rows[position] = place
            else:
                by_answered[id(place.among)].append((position, place))
        for found in by_answered.values():
            composed = self._composer.rows(
                [queries[position] for position, _ in found],
                [place.seed for _, place in found],
                found[0][1].among,
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
