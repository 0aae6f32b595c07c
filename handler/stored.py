"""Answers from what is stored: the table first, then the cache, if proven or young enough."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from handler import metrics
from handler.afterwards import Afterwards
from handler.answers import Answered, Place, Source
from handler.cache.outputs import Outputs
from handler.cache.protocol import OutputCache
from handler.cache.store import Store
from handler.cache.writing import now_us
from handler.errors import RequestError
from handler.forwards import Group, Seed
from handler.graph.budget import Sampled
from handler.graph.fanout import FanoutPlan
from handler.graph.ids import NodeId
from handler.graph.live_graph import LiveGraph
from handler.inputs import ModelInputs
from handler.model.output import ModelOutput
from handler.model.signature import Signature

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """Where the answer for a node would be from, and why."""

    source: Source
    why: str


class StoredAnswers:
    """Looks for answers of one graph, as it is now, in a store, and puts new ones there.

    Args:
        inputs: of the model, from the graph.
        afterwards: does what no answer needs.
    """

    def __init__(
        self,
        store: Store,
        graph: LiveGraph,
        inputs: ModelInputs,
        signature: Signature,
        counters: metrics.Counters,
        afterwards: Afterwards,
    ) -> None:
        self._store = store
        self._graph = graph
        self._inputs = inputs
        self._counters = counters
        self._afterwards = afterwards
        self._plan = FanoutPlan.of(signature.layer_fanouts)
        self._embedding_dim = signature.embedding_dim

    def answer(
        self, seeds: Sequence[Seed], group: Group, places: list[Place | RequestError]
    ) -> Sequence[Seed]:
        """Write where stored answers are to `places`; returns the seeds for which there is none."""
        if not self._is_kept(group) or group.max_staleness_ms == 0:
            return seeds
        try:
            rest = seeds
            if group.max_staleness_ms is not None:
                rest = self._aged(rest, group.max_staleness_ms, places)
            return self._proven(rest, places)
        except Exception:  # noqa: BLE001 - the model can always answer
            _log.exception("looking for %d stored answers failed", len(seeds))
            self._counters.add(metrics.CACHE_FAILURES, 1, "internal")
            return seeds

    def keep(self, computed: Sequence[tuple[Sequence[Seed], Answered]], group: Group) -> None:
        """Put what was computed where the next request finds it."""
        cache = self._store.cache
        if cache is None or not self._is_kept(group):
            return
        with self._harmless():
            for seeds, answered in computed:
                sampled = answered.sampled
                if sampled is not None and not sampled.truncated:
                    # Now, while the graph is what it was computed from.
                    proof = self._inputs.fingerprints(sampled, self._store.tag)
                    self._afterwards.do(partial(self._put, cache, seeds, answered, proof, self._graph.seq))

    def _put(
        self,
        cache: OutputCache,
        seeds: Sequence[Seed],
        answered: Answered,
        proof: NDArray[np.uint64],
        seq: int,
    ) -> None:
        with self._harmless():
            output = answered.output.side_by_side
            places = np.flatnonzero(np.isfinite(output).all(axis=1))
            outputs = Outputs(
                output,
                proof,
                np.full(len(seeds), seq, dtype=np.int64),
                np.full(len(seeds), now_us(), dtype=np.int64),
                answered.num_nodes.astype(np.int32),
            )
            cache.put(_ids([seeds[place] for place in places.tolist()]), outputs.take(places))

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Whatever fails in the block is counted and logged: the answers are right all the same."""
        try:
            yield
        except Exception:  # noqa: BLE001
            _log.exception("storing answers failed")
            self._counters.add(metrics.CACHE_FAILURES, 1, "internal")

    def explain(self, index: int, node_id: NodeId, max_staleness_ms: float | None) -> Verdict:
        """Where the answer for a node would be from now; nothing is counted.

        Raises:
            RequestError: it cannot be sampled.
        """
        if max_staleness_ms == 0:
            return Verdict("live", "the settings force the model")
        sampled = self._inputs.sample(np.array([index]), self._plan)
        if sampled.truncated:
            return Verdict("live", "its samples are cut to the budget, and such answers are not kept")
        (proof,) = self._inputs.fingerprints(sampled, self._store.tag).tolist()
        reasons: list[str] = []
        for source, where, row in self._rows_of(index, node_id):
            if row is None or not int(row.fingerprint[0]):
                reasons.append(f"the {where} has no row for it")
                continue
            age_ms = (now_us() - int(row.computed_us[0])) / 1000
            if max_staleness_ms is not None and age_ms <= max_staleness_ms:
                return Verdict(source, f"its row in the {where} is {age_ms:.0f} ms old, which is allowed")
            if int(row.fingerprint[0]) == proof:
                return Verdict(source, "; ".join([*reasons, f"its row in the {where} is proven to hold"]))
            reasons.append(
                f"its row in the {where} is stale: its tree, or features in it, changed after mutation"
                f" {int(row.seq[0])}"
            )
        return Verdict("live", "; ".join(reasons) or "nothing is kept")

    def _rows_of(self, index: int, node_id: NodeId) -> Iterator[tuple[Source, str, Outputs | None]]:
        """What table and cache have of a node."""
        kept = self._store.kept
        if kept is not None:
            yield "precomputed", "table", kept.table.rows(np.array([index]))
        if self._store.cache is not None:
            found = self._store.cache.get([node_id])
            yield "cache", "cache", found.outputs if len(found.place) else None

    def _is_kept(self, group: Group) -> bool:
        """Whether these are answers as the model gives them by itself."""
        return group.plan == self._plan and not group.has_time and group.source == "live"

    def _aged(
        self, seeds: Sequence[Seed], max_staleness_ms: float, places: list[Place | RequestError]
    ) -> Sequence[Seed]:
        """Answer what was computed so short a time ago, whatever became of the graph; returns the rest."""
        oldest_us = now_us() - int(max_staleness_ms * 1000)
        kept = self._store.kept
        if kept is not None and seeds and kept.table.manifest.computed * 1e6 >= oldest_us:
            rows = kept.table.rows(_indices(seeds))
            young = rows.fingerprint != 0
            self._give_aged(seeds, rows, young, "precomputed", places)
            seeds = [seeds[place] for place in np.flatnonzero(~young).tolist()]
        if self._store.cache is not None and seeds:
            found = self._store.cache.get(_ids(seeds))
            young = found.outputs.computed_us >= oldest_us
            self._give_aged([seeds[p] for p in found.place.tolist()], found.outputs, young, "cache", places)
            taken = set(found.place[young].tolist())
            seeds = [seed for place, seed in enumerate(seeds) if place not in taken]
        return seeds

    def _give_aged(
        self,
        seeds: Sequence[Seed],
        rows: Outputs,
        young: NDArray[np.bool_],
        source: Source,
        places: list[Place | RequestError],
    ) -> None:
        answered = Answered(self._split(rows.output), rows.num_nodes, None, source, rows.seq, _age_ms(rows))
        self._give(seeds, np.flatnonzero(young), answered, places, "aged")

    def _proven(self, seeds: Sequence[Seed], places: list[Place | RequestError]) -> Sequence[Seed]:
        """Answer those whose trees are what they were when the answer was computed; returns the rest."""
        rest: list[Seed] = []
        while seeds:
            try:
                with self._counters.timed("prove"):
                    sampled = self._inputs.sample(_indices(seeds), self._plan)
                    proof = self._inputs.fingerprints(sampled, self._store.tag)
            except RequestError:  # of the first seed; it will be said again where it is to be answered
                rest.append(seeds[0])
                seeds = seeds[1:]
                continue
            part, seeds = seeds[: len(proof)], seeds[len(proof) :]
            if sampled.truncated:
                rest += part
                continue
            with self._counters.timed("stored"):
                rest += self._fresh(part, sampled, proof, places)
        return rest

    def _fresh(
        self,
        seeds: Sequence[Seed],
        sampled: Sampled,
        proof: NDArray[np.uint64],
        places: list[Place | RequestError],
    ) -> list[Seed]:
        kept = self._store.kept
        waiting = np.arange(len(seeds))
        if kept is not None:
            rows = kept.table.rows(_indices(seeds))
            fresh = rows.fingerprint == proof
            self._give_proven(seeds, sampled, rows, np.flatnonzero(fresh), "precomputed", places)
            self._count(
                "table", int((rows.fingerprint == 0).sum()), int((rows.fingerprint != 0).sum() - fresh.sum())
            )
            waiting = np.flatnonzero(~fresh)
        if self._store.cache is not None and len(waiting):
            found = self._store.cache.get(_ids([seeds[place] for place in waiting.tolist()]))
            at = waiting[found.place]
            fresh = found.outputs.fingerprint == proof[at]
            rows = _spread(found.outputs.take(np.flatnonzero(fresh)), at[fresh], len(seeds))
            self._give_proven(seeds, sampled, rows, at[fresh], "cache", places)
            self._count("cache", len(waiting) - len(at), len(at) - int(fresh.sum()))
            left = np.ones(len(waiting), dtype=np.bool_)
            left[found.place[fresh]] = False
            waiting = waiting[left]
        return [seeds[place] for place in waiting.tolist()]

    def _give_proven(
        self,
        seeds: Sequence[Seed],
        sampled: Sampled,
        rows: Outputs,
        hits: NDArray[np.int64],
        source: Source,
        places: list[Place | RequestError],
    ) -> None:
        num_nodes = np.diff(sampled.trees.ptr)
        answered = Answered(self._split(rows.output), num_nodes, sampled, source, None, _age_ms(rows))
        self._give(seeds, hits, answered, places, "hit")

    def _give(
        self,
        seeds: Sequence[Seed],
        hits: NDArray[np.int64],
        answered: Answered,
        places: list[Place | RequestError],
        outcome: str,
    ) -> None:
        if not len(hits):
            return
        asked = np.array([len(seeds[number].positions) for number in hits.tolist()])
        for number in hits.tolist():
            place = Place(answered, number)
            for position in seeds[number].positions:
                places[position] = place
        self._counters.add(metrics.NODES, int(asked.sum()), answered.source)
        if answered.age_ms is not None:
            self._counters.observe_all(metrics.ANSWER_AGE, answered.age_ms[hits] / 1000, weights=asked)
        store = "table" if answered.source == "precomputed" else "cache"
        self._counters.add(metrics.STORED, len(hits), store, outcome)

    def _count(self, store: str, num_missing: int, num_stale: int) -> None:
        for outcome, number in (("miss", num_missing), ("stale", num_stale)):
            if number:
                self._counters.add(metrics.STORED, number, store, outcome)

    def _split(self, output: NDArray[np.float32]) -> ModelOutput:
        return ModelOutput(output[:, : self._embedding_dim], output[:, self._embedding_dim :])


def _spread(outputs: Outputs, at: NDArray[np.int64], count: int) -> Outputs:
    """The rows at other places among so many, of which the others are empty."""
    place = np.zeros(count, dtype=np.int64)
    place[at] = np.arange(len(at))
    return outputs.take(place) if len(at) else outputs


def _indices(seeds: Sequence[Seed]) -> NDArray[np.int64]:
    return np.array([seed.index for seed in seeds], dtype=np.int64)


def _ids(seeds: Sequence[Seed]) -> list[int | str]:
    return [seed.node_id for seed in seeds if seed.node_id is not None]


def _age_ms(rows: Outputs) -> NDArray[np.int64]:
    """int64 [num_rows]: how long ago each was computed."""
    return np.maximum(0, now_us() - rows.computed_us) // 1000
