"""What is made of a graph in a cluster: anew for each batch, of the window that it needs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

import numpy as np

from handler.errors import GraphInputError, GraphUnavailable, NotReady
from handler.graph.cluster.layout import read_place
from handler.graph.cluster.shards import Shards
from handler.graph.cluster.window import ClusterGraph, Window
from handler.graph.fanout import FanoutPlan
from handler.graph.live_graph import LiveGraph
from handler.graph.sampling import COMPUTED, Sampling
from handler.graph.views import Needs, Source, Standing, Views

_View = TypeVar("_View")
_AROUND = 64  # nodes of the window that is read where nobody says what is needed
_LOOK_S = 0.05  # between looks for what has changed
_SOON_S = 0.005  # the same, where a mutation is waited for
_ONE_HOP = FanoutPlan.of((1,))
_log = logging.getLogger(__name__)


class ClusterViews(Generic[_View]):
    """Reads the graph that counts in a cluster; see `Views`.

    Args:
        open_graph: gives the version that counts now.
        max_wait_s: how long a reading may wait for the mutation that it asks for.

    Raises:
        GraphInputError: what is made of it needs what a cluster does not hold.
        GraphUnavailable: there is no graph, or the cluster cannot be asked.
    """

    def __init__(
        self,
        open_graph: Callable[[], ClusterGraph],
        sampling: Sampling,
        make: Callable[[LiveGraph], _View],
        max_wait_s: float = 0.2,
    ) -> None:
        if sampling.strategy in COMPUTED:
            raise GraphInputError(
                f"a model that samples by `{sampling.strategy}` reads whole rows, which lie in a cluster:"
                " serve it from a snapshot on this machine"
            )
        self._open = open_graph
        self._graph = open_graph()
        self._sampling = sampling
        self._make = make
        self._max_wait_s = max_wait_s
        self._reading = threading.Lock()
        self._opened_s = time.time()
        self._looked_s = time.monotonic()
        with self.reading():  # what cannot be made is said now
            pass

    @contextmanager
    def reading(self, min_seq: int = 0, needs: Needs | None = None) -> Iterator[_View]:
        """See `Views`.

        Raises:
            NotReady: the cluster cannot be read now.
        """
        with self._reading:
            try:
                self._wait_for(min_seq)
                window = self._window(needs)
            except GraphUnavailable as error:
                _log.warning("%s", error)
                raise NotReady(str(error)) from None
        yield self._make(LiveGraph(window.snapshot, self._sampling, is_partial=True))

    def _wait_for(self, min_seq: int) -> None:
        """Look until a mutation counts, for a while."""
        deadline = time.monotonic() + self._max_wait_s
        while self._graph.reached.seq < min_seq and time.monotonic() < deadline:
            self._move_on()
            if self._graph.reached.seq < min_seq:
                time.sleep(_SOON_S)

    def _window(self, needs: Needs | None) -> Window:
        """What is needed, of the version that counts."""
        now = time.monotonic()
        if now - self._looked_s > _LOOK_S:
            self._looked_s = now
            with suppress(GraphUnavailable):  # what is at hand can be answered all the same
                self._move_on()
        try:
            return self._read(needs)
        except GraphUnavailable:
            if not self._move_on():
                raise
            return self._read(needs)

    def _move_on(self) -> bool:
        """Open the version that counts, if it is another one."""
        if self._graph.is_current():
            return False
        self._graph = self._open()
        self._opened_s = time.time()
        _log.info("answers come from version %s of the graph now", self._graph.version)
        return True

    def _read(self, needs: Needs | None) -> Window:
        manifest = self._graph.manifest.graph
        if needs is None:
            count = min(_AROUND, manifest.num_nodes)
            around = np.linspace(0, manifest.num_nodes - 1, num=count).astype(np.int64)
            return self._graph.window(around, _ONE_HOP)
        kind = str if manifest.id_kind == "str" else int
        index = self._graph.index_of([each for each in needs.node_ids() if type(each) is kind])
        return self._graph.window(index[index >= 0], needs.plan, degrees=needs.degrees)

    def standing(self) -> Standing:
        """See `Views`."""
        reached, base = self._graph.reached, self._graph.manifest.graph.seq
        age_s = time.time() - self._opened_s
        return Standing(reached.seq, None, reached.seq - base, 0, age_s, reached.num_nodes)

    def close(self) -> None:
        """See `Views`."""
        self._graph.shards.close()


def cluster_source(place: str, hot_bytes: int = 0, max_wait_s: float = 0.2) -> Source:
    """The graph at a place such as redis+cluster://[USER:PASSWORD@]HOST:6379/NAME, of any node's host.

    Args:
        hot_bytes: see `ClusterGraph`.
        max_wait_s: see `ClusterViews`.
    """
    url, name = read_place(place)

    def views(sampling: Sampling, make: Callable[[LiveGraph], _View]) -> Views[_View]:
        shards = Shards(url)
        return ClusterViews(lambda: ClusterGraph.open(shards, name, hot_bytes), sampling, make, max_wait_s)

    return views
