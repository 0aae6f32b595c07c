"""Runs a model over the samples of nodes: as many at once as fit, and fewer where that fails."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from handler import metrics
from handler.afterwards import Afterwards
from handler.answers import Answered, Place, Source
from handler.errors import (
    InternalError,
    ModelError,
    OutOfMemory,
    RequestError,
    TooLargeForMemory,
    as_value,
    in_one_line,
)
from handler.graph.budget import Sampled
from handler.graph.fanout import FanoutPlan
from handler.graph.ids import NodeId
from handler.inputs import ModelInputs
from handler.model.exported import Model
from handler.model.memory import free_bytes, peak_bytes, release, translated
from handler.model.output import ModelOutput

_log = logging.getLogger(__name__)
_MEASURED_NODES = 16_384  # so many that what a forward takes whatever its size does not count
_MEASURED_TIMES = 3
_SHARE_OF_FREE = 0.5
_HEADROOM = 1.25  # forwards differ in shape, and allocators round up


@dataclass(frozen=True)
class Group:
    """Queries that are answered in the same way.

    Args:
        has_time: whether each has an `as_of`.
        source: what answers that are computed say they are.
        max_staleness_ms: how old a stored answer may be; 0: no stored one will do; none: any that is proven.
    """

    plan: FanoutPlan
    has_time: bool
    source: Source = "live"
    max_staleness_ms: float | None = 0.0


@dataclass
class Seed:
    """A node that is to be computed once, and the positions of all queries that ask for it so."""

    index: int
    as_of: float | None
    positions: list[int]
    node_id: NodeId | None = None


class Forwards:
    """Computes nodes of one graph by one model.

    Args:
        inputs: of the model, from the graph.
        afterwards: does what no answer needs.
    """

    def __init__(
        self, inputs: ModelInputs, model: Model, counters: metrics.Counters, afterwards: Afterwards
    ) -> None:
        self._inputs = inputs
        self._model = model
        self._counters = counters
        self._afterwards = afterwards
        self._full_plan = FanoutPlan.of(model.signature.layer_fanouts)

    def compute(
        self, seeds: Sequence[Seed], group: Group, places: list[Place | RequestError]
    ) -> list[tuple[Sequence[Seed], Answered]]:
        """Write where the answers for seeds are to `places`, by the positions of their queries.

        Forwards run over all seeds, as many at once as fit; of those that fail, over halves. So an error ends
        with the seed that it is about, and the others are answered.

        Returns:
            What was computed, and for which seeds.
        """
        computed: list[tuple[Sequence[Seed], Answered]] = []
        waiting = [seeds] if seeds else []
        while waiting:
            part = waiting.pop()
            try:
                sampled = self._sample(part, group)
            except RequestError as error:  # of the first seed
                _give(part[:1], as_value(error), places)
                if len(part) > 1:
                    waiting.append(part[1:])
                continue
            if sampled.trees.num_seeds < len(part):
                self._counters.add(metrics.SPLIT_BATCHES, 1)
                waiting.append(part[sampled.trees.num_seeds :])
            part = part[: sampled.trees.num_seeds]
            if unreadable := self._inputs.unreadable(sampled):
                waiting += _give_some(part, unreadable, places)
                continue
            try:
                answered = Answered(
                    self._run(sampled), np.diff(sampled.trees.ptr), sampled, source=group.source
                )
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
                _give_places(part, answered, places)
                computed.append((part, answered))
                self._afterwards.do(partial(self._count, part, sampled, group.source))
        return computed

    def check(self) -> None:
        """Run the model on one node, where a failure can still say what is wrong; `ModelError`."""
        first = np.zeros(1, dtype=np.int64)
        try:
            output = self._run(self._inputs.sample(first, self._full_plan))
            if self._model.signature.link_score is not None:
                self._model.score(output.embedding, output.embedding)
        except (RuntimeError, OutOfMemory) as error:
            raise ModelError(f"the model fails on this graph: {in_one_line(error)}") from error

    def lower(self, max_nodes: int) -> None:
        """From now on put no more nodes into one forward."""
        self._inputs.budget.lower(max_nodes)

    def measured_max_nodes(self, budget_bytes: int, num_workers: int, num_nodes: int) -> int:
        """How many nodes a forward may hold as memory allows, by what one is seen to take.

        Args:
            budget_bytes: what a forward may take; 0 for a share of what is free.
            num_workers: processes that share the device's memory.
            num_nodes: of the graph.
        """
        device = self._model.device
        if not budget_bytes:
            budget_bytes = int(free_bytes(device) * _SHARE_OF_FREE / num_workers)
        node_bytes = max(self._inputs.node_bytes, int(_HEADROOM * self._measured_node_bytes(num_nodes)))
        max_nodes = min(budget_bytes // node_bytes, self._inputs.budget.max_nodes)
        _log.info("a forward takes %d bytes per node: at most %d nodes at once", node_bytes, max_nodes)
        return max_nodes

    def _sample(self, seeds: Sequence[Seed], group: Group) -> Sampled:
        index = np.array([seed.index for seed in seeds], dtype=np.int64)
        as_of = np.array([seed.as_of for seed in seeds], dtype=np.float64) if group.has_time else None
        with self._counters.timed("sample"):
            return self._inputs.sample(index, group.plan, as_of)

    def _run(self, sampled: Sampled) -> ModelOutput:
        with self._counters.timed("batch"):
            arranged = self._inputs.arrange(sampled)
        with self._counters.timed("gather"), translated():
            given = self._inputs.gather(arranged)
        with self._counters.timed("forward"):
            self._counters.add(metrics.FORWARDS, 1)
            return self._model.run(given)

    def _measured_node_bytes(self, num_nodes: int) -> int:
        """What a forward of some size takes of memory for each node."""
        wanted = _MEASURED_NODES
        while True:
            try:
                (few, some), (many, more) = (self._peak(num_nodes, wanted // part) for part in (2, 1))
            except OutOfMemory as error:
                release(self._model.device)
                wanted //= 4
                if not wanted:
                    raise ModelError("there is no memory for a forward over a single node") from error
            else:
                # Memory kept from earlier ones can hide a part of each peak, but not of what is added.
                return max(more // many, (more - some) // (many - few) if many > few else 0)

    def _peak(self, num_nodes: int, wanted: int) -> tuple[int, int]:
        """A forward of about so many nodes: how many it has, and the bytes that it takes at its peak."""
        seeds = np.arange(num_nodes)[: max(1, wanted // self._full_plan.max_tree_nodes)]
        found = len(self._inputs.sample(seeds, self._full_plan).trees.node)
        sampled = self._inputs.sample(np.tile(seeds, max(1, wanted // found)), self._full_plan)
        self._run(sampled)  # what TorchScript takes to compile is not to be counted
        # The most of some: pages that an earlier one has left would not be seen.
        peaks = [peak_bytes(self._model.device, lambda: self._run(sampled)) for _ in range(_MEASURED_TIMES)]
        return len(sampled.trees.node), max(peaks)

    def _count(self, seeds: Sequence[Seed], sampled: Sampled, source: Source) -> None:
        """Count each tree as often as it was asked for, though it was computed once."""
        trees, num_hops = sampled.trees, sampled.plan.num_hops
        asked = np.array([len(seed.positions) for seed in seeds])
        self._counters.add(metrics.NODES, int(asked.sum()), source)
        by_hop = trees.count_by_hop(num_hops)
        for hop in range(1, num_hops + 1):
            self._counters.observe_all(metrics.NEIGHBORS, by_hop[hop], str(hop), weights=asked)
        self._counters.observe_all(metrics.EDGES, np.diff(trees.ptr) - 1, weights=asked)
        self._counters.observe(metrics.FORWARD_SEEDS, trees.num_seeds)
        if sampled.truncated:
            self._counters.add(metrics.TRUNCATED, int(asked.sum()))


def no_places(count: int) -> list[Place | RequestError]:
    """Room for the places of so many queries, each an error until it is computed."""
    return [InternalError()] * count


def _halves(seeds: Sequence[Seed]) -> list[Sequence[Seed]]:
    """Both halves of several seeds; nothing of one, which cannot be tried in parts."""
    middle = len(seeds) // 2
    return [seeds[middle:], seeds[:middle]] if middle else []


def _give(seeds: Sequence[Seed], error: RequestError, places: list[Place | RequestError]) -> None:
    """Answer all queries for some seeds with an error."""
    for seed in seeds:
        for position in seed.positions:
            places[position] = error


def _give_some(
    seeds: Sequence[Seed], errors: Mapping[int, RequestError], places: list[Place | RequestError]
) -> list[Sequence[Seed]]:
    """Answer all queries for the seeds at some places with errors; the others, if there are any."""
    for number, error in errors.items():
        _give(seeds[number : number + 1], error, places)
    rest = [seed for number, seed in enumerate(seeds) if number not in errors]
    return [rest] if rest else []


def _give_places(seeds: Sequence[Seed], answered: Answered, places: list[Place | RequestError]) -> None:
    """Answer all queries for the seeds of a forward by their places in it."""
    for number, seed in enumerate(seeds):
        place = Place(answered, number)
        for position in seed.positions:
            places[position] = place
