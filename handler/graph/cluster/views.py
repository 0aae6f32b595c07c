"""What is made of a graph in a cluster: anew for each batch, of the window that it needs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from handler.errors import GraphInputError, GraphUnavailable, NotReady
from handler.graph.cluster.layout import read_place
from handler.graph.cluster.shards import Shards
from handler.graph.cluster.window import UNREAD, ClusterGraph, Window
from handler.graph.fanout import FanoutPlan
from handler.graph.ids import NodeId
from handler.graph.live_graph import LiveGraph
from handler.graph.sampling import COMPUTED, Sampling
from handler.graph.unread import Unread
from handler.graph.views import Needs, Source, Standing, Views

_View = TypeVar("_View")
_AROUND = 64  # nodes of the window that is read where nobody says what is needed
_LOOK_S = 0.05  # between looks for what has changed
_WARN_S = 1.0  # between warnings
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
        self._warned_s = -_WARN_S
        with self.reading():  # what cannot be made is said now
            pass

    @contextmanager
    def reading(self, min_seq: int = 0, needs: Needs | None = None) -> Iterator[_View]:
        """See `Views`.

        What cannot be read now is noted as such in the graph, and errs by itself.

        Raises:
            NotReady: the cluster holds not what it should.
        """
        with self._reading:
            try:
                self._wait_for(min_seq)
                graph = self._window(needs)
            except GraphUnavailable as error:
                self._warn("%s", error)
                raise NotReady(str(error)) from None
        if graph.unread is not None:
            self._warn("some answers cannot be given: %s", graph.unread.why)
        yield self._make(graph)

    def _warn(self, message: str, why: object) -> None:
        """Log what may be so for each batch for a while, now and then."""
        now = time.monotonic()
        if now - self._warned_s > _WARN_S:
            self._warned_s = now
            _log.warning(message, why)

    def _wait_for(self, min_seq: int) -> None:
        """Look until a mutation counts, for a while."""
        deadline = time.monotonic() + self._max_wait_s
        while self._graph.reached.seq < min_seq and time.monotonic() < deadline:
            with suppress(GraphUnavailable):  # who asks for the mutation is told, and others need not know
                self._move_on()
            if self._graph.reached.seq < min_seq:
                time.sleep(_SOON_S)

    def _window(self, needs: Needs | None) -> LiveGraph:
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

    def _read(self, needs: Needs | None) -> LiveGraph:
        manifest = self._graph.manifest.graph
        if needs is None:
            count = min(_AROUND, manifest.num_nodes)
            around = np.linspace(0, manifest.num_nodes - 1, num=count).astype(np.int64)
            window = self._graph.window(around, _ONE_HOP)
            if window.no_node.any() or window.no_row.any():
                raise GraphUnavailable(self._graph.why_unread)
            return LiveGraph(window.snapshot, self._sampling, is_partial=True)
        kind = str if manifest.id_kind == "str" else int
        asked = [each for each in needs.node_ids() if type(each) is kind]
        index = self._graph.index_of(asked)
        window = self._graph.window(index[index >= 0], needs.plan, degrees=needs.degrees)
        unread = self._unread(asked, index, window, row_of_each=needs.degrees)
        return LiveGraph(window.snapshot, self._sampling, is_partial=True, unread=unread)

    def _unread(
        self, asked: Sequence[NodeId], index: NDArray[np.int64], window: Window, *, row_of_each: bool
    ) -> Unread | None:
        """What could not be read of all that is needed.

        Args:
            index: int64 [len(asked)], of the nodes that are asked for.
        """
        lost = index == UNREAD
        if not (lost.any() or window.no_node.any() or window.no_row.any()):
            return None
        known = index >= 0
        lost[known] = window.no_node[window.places(index[known])]
        ids = frozenset(asked[place] for place in np.flatnonzero(lost).tolist())
        return Unread(self._graph.why_unread, ids, window.no_node, window.no_row, row_of_each)

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
