"""What is made of a graph, to be read while the graph stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, Protocol, TypeVar

from handler.graph.home import HeldSnapshot
from handler.graph.live_graph import LiveGraph
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot

_View = TypeVar("_View")
_View_co = TypeVar("_View_co", covariant=True)


class Views(Protocol[_View_co]):
    """What is made of a graph, to be used with the graph as it is at one moment."""

    def reading(self, min_seq: int = 0) -> AbstractContextManager[_View_co]:
        """What was made of the graph, which does not change until the end of the block.

        Args:
            min_seq: a mutation that should count; if it cannot soon, the graph is less fresh than that.

        Raises:
            NotReady: the graph is known to be wrong.
        """
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
        self._held = held

    @contextmanager
    def reading(self, min_seq: int = 0) -> Iterator[_View]:
        """See `Views`."""
        yield self._view

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
