"""What is made of a graph, to be read while the graph stays as it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from handler.graph.fanout import FanoutPlan
from handler.graph.home import HeldSnapshot
from handler.graph.ids import NodeId
from handler.graph.live_graph import LiveGraph
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot

_View = TypeVar("_View")
_View_co = TypeVar("_View_co", covariant=True)


@dataclass(frozen=True)
class Needs:
    """What of a graph is going to be read, where it is not all at hand.

    Args:
        node_ids: gives them, of any type and more than once, as they were asked for; also those the graph has
            not. Not called where all is at hand.
        plan: by which they are sampled at most.
        degrees: whether the sizes of samples are read, also of nodes that are not expanded.
    """

    node_ids: Callable[[], Sequence[NodeId | None]]
    plan: FanoutPlan
    degrees: bool = False


@dataclass(frozen=True)
class Standing:
    """How a graph that is read stands.

    Args:
        seq: the latest mutation that counts.
        lag: mutations in the log that do not count yet; none where it cannot be asked.
        overlay_mutations, overlay_bytes: those since the snapshot, and the memory that they take.
        snapshot_age_s: since the snapshot was written.
    """

    seq: int
    lag: int | None
    overlay_mutations: int
    overlay_bytes: int
    snapshot_age_s: float
    num_nodes: int


def standing_of(graph: LiveGraph, lag: int | None) -> Standing:
    """How one graph stands."""
    return Standing(
        seq=graph.seq,
        lag=lag,
        overlay_mutations=graph.seq - graph.manifest.seq,
        overlay_bytes=graph.nbytes,
        snapshot_age_s=max(0.0, time.time() - graph.snapshot.written),
        num_nodes=graph.num_nodes,
    )


class Views(Protocol[_View_co]):
    """What is made of a graph, to be used with the graph as it is at one moment."""

    def reading(self, min_seq: int = 0, needs: Needs | None = None) -> AbstractContextManager[_View_co]:
        """What was made of the graph, which does not change until the end of the block.

        Args:
            min_seq: a mutation that should count; if it cannot soon, the graph is less fresh than that.
            needs: what is going to be read; none for any nodes, whichever are at hand.

        Raises:
            NotReady: the graph is known to be wrong.
        """
        ...

    def standing(self) -> Standing:
        """How the graph stands now; waits for nobody."""
        ...

    def close(self) -> None:
        """Let go of the graph."""
        ...


class StaticViews(Generic[_View]):
    """What is made of a graph that does not change."""

    def __init__(
        self, graph: LiveGraph, make: Callable[[LiveGraph], _View], held: HeldSnapshot | None = None
    ) -> None:
        self._view = make(graph)
        self._graph = graph
        self._held = held

    @contextmanager
    def reading(self, min_seq: int = 0, needs: Needs | None = None) -> Iterator[_View]:
        """See `Views`."""
        yield self._view

    def standing(self) -> Standing:
        """See `Views`."""
        return standing_of(self._graph, 0)

    def close(self) -> None:
        """See `Views`."""
        if self._held is not None:
            self._held.close()


class Source(Protocol):
    """Where a graph comes from."""

    def __call__(self, sampling: Sampling, make: Callable[[LiveGraph], _View]) -> Views[_View]:
        """What is made of the graph, read by a sampling."""
        ...


def static_source(snapshot: Snapshot) -> Source:
    """A graph that does not change."""

    def views(sampling: Sampling, make: Callable[[LiveGraph], _View]) -> Views[_View]:
        return StaticViews(LiveGraph(snapshot, sampling), make)

    return views
