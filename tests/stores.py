"""The stores that a graph may lie in, as the tests use them: it is held, changed, and asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from hypothesis import strategies as st

from handler.change_service import ChangeService
from handler.graph.arrays import GraphArrays
from handler.graph.cluster.layout import Keys
from handler.graph.cluster.mirror import Mirror
from handler.graph.cluster.push import graph_version, push
from handler.graph.cluster.shards import Shards
from handler.graph.follower import Follower, follow
from handler.graph.home import GraphHome, write_home
from handler.graph.live_graph import LiveGraph
from handler.graph.opening import source_of
from handler.graph.sampling import Sampling
from handler.graph.writer import BuildPlan
from handler.metrics import Counters
from handler.model.exported import Model
from handler.service import Service
from handler.settings import GraphSettings
from tests.clustered import place_of, service_of
from tests.clusters import Cluster

_NAME = "stored"


@dataclass(frozen=True)
class Layout:
    """How a graph lies in a cluster, and what a worker keeps of it; a folder has no such choice."""

    head: int = 32
    partitions: int = 3
    hot_bytes: int = 0


class Stored:
    """A graph in a store, what changes it, and what answers from it.

    Args:
        home: of the graph and its log.
        service: makes one more worker.
        bring_over: brings what the log has to where the graph is read.
    """

    def __init__(
        self, home: Path, service: Callable[[], Service], bring_over: Callable[[], object] | None = None
    ) -> None:
        self._follower: Follower[LiveGraph] = follow(home, lambda graph: graph)
        self._changing = ChangeService(self._follower, GraphSettings(graph=""), Counters())
        self._service = service
        self._bring_over = bring_over
        self._workers: list[Service] = []
        #: The latest mutation that was acknowledged.
        self.seq = 0

    def change(self, **request: object) -> dict[str, Any]:
        """How a change is acknowledged; it has been brought over, too."""
        ((status, answer),) = self.append(request)
        assert status == 200, answer
        self.bring_over()
        return dict(answer)

    def append(self, *requests: object) -> list[tuple[int, Any]]:
        """Ask for changes, in one batch; status and JSON of each."""
        answers = asked(self._changing, *requests)
        self.seq = max([self.seq, *(answer["last_seq"] for status, answer in answers if status == 200)])
        return answers

    def bring_over(self) -> None:
        """Let workers see all that the log has, as soon as they look."""
        if self._bring_over is not None:
            self._bring_over()

    def ask(self, *requests: object, worker: int = 0) -> list[tuple[int, Any]]:
        """Ask a worker, in one batch; status and JSON of each."""
        while worker >= len(self._workers):
            self._workers.append(self._service())
        return asked(self._workers[worker], *requests)

    def answer(self, **request: object) -> dict[str, Any]:
        """The answer to a request that is no error, and that counts all that was acknowledged."""
        ((status, answer),) = self.ask({"min_seq": self.seq} | request)
        assert status == 200, answer
        return dict(answer)

    def rows(self, node_ids: list[Any], **options: object) -> list[dict[str, Any]]:
        """As `answer`, of many nodes."""
        return list(self.answer(node_ids=node_ids, **options)["predictions"])

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._changing.close()


def asked(service: Service | ChangeService, *requests: object) -> list[tuple[int, Any]]:
    """Answer one batch of requests; status and JSON of each."""
    bodies = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in requests]
    return [(answer.status.value, json.loads(answer.body)) for answer in service.answer(bodies)]


class Store(Protocol):
    """Where a graph may lie."""

    name: str
    #: Whether a request may store the node that it describes.
    takes_described: bool

    def layouts(self) -> st.SearchStrategy[Layout]:
        """The ways in which a graph may lie there."""
        ...

    def holding(
        self,
        graph: GraphArrays,
        model: Model,
        plan: BuildPlan | None = None,
        layout: Layout = Layout(),
        max_wait_s: float = 30.0,
    ) -> AbstractContextManager[Stored]:
        """A graph, until the end of the block.

        Args:
            max_wait_s: how long an answer may wait for the mutation that it is to count.
        """
        ...


class FolderStore:
    """The snapshot in a folder of this machine, and what workers keep in memory of the changes since."""

    name = "folder"
    takes_described = True

    def layouts(self) -> st.SearchStrategy[Layout]:
        return st.just(Layout())

    @contextmanager
    def holding(
        self,
        graph: GraphArrays,
        model: Model,
        plan: BuildPlan | None = None,
        layout: Layout = Layout(),
        max_wait_s: float = 30.0,
    ) -> Iterator[Stored]:
        with TemporaryDirectory() as folder:
            home = Path(folder, "graph")
            write_home(home, graph, plan)
            with closing(Stored(home, lambda: _worker(str(home), model, 0, max_wait_s))) as stored:
                yield stored


class ClusterStore:
    """A cluster that the graph was pushed to, and that follows its log."""

    name = "cluster"
    takes_described = False

    def __init__(self, cluster: Cluster, shards: Shards) -> None:
        self._place = place_of(cluster, _NAME)
        self._shards = shards

    def layouts(self) -> st.SearchStrategy[Layout]:
        return st.builds(Layout, st.integers(1, 4), st.integers(1, 4), st.sampled_from([0, 2000, 100_000]))

    @contextmanager
    def holding(
        self,
        graph: GraphArrays,
        model: Model,
        plan: BuildPlan | None = None,
        layout: Layout = Layout(),
        max_wait_s: float = 30.0,
    ) -> Iterator[Stored]:
        with TemporaryDirectory() as folder, ExitStack() as undo:
            home = Path(folder, "graph")
            write_home(home, graph, plan)
            mirror = self._mirror(home, model.signature.sampling, layout, undo)
            stored = Stored(
                home, lambda: _worker(self._place, model, layout.hot_bytes, max_wait_s), mirror.step
            )
            yield undo.enter_context(closing(stored))

    def _mirror(self, home: Path, sampling: Sampling, layout: Layout, undo: ExitStack) -> Mirror:
        """Push a graph in the order that a model samples by, and get ready to follow its log."""
        strategy = sampling.strategy
        assert strategy != "walk"
        assert strategy != "random"
        follower = undo.enter_context(closing(follow(home, lambda graph: graph, sampling)))
        with follower.reading() as live:
            manifest = push(
                live.snapshot,
                self._shards,
                _NAME,
                graph_id=GraphHome.read(home).graph_id,
                strategy=strategy,
                partitions=layout.partitions,
                head=layout.head,
            )
        keys = Keys(_NAME, graph_version(manifest))
        return undo.enter_context(closing(Mirror(follower, self._shards, keys, manifest)))


def _worker(place: str, model: Model, hot_bytes: int, max_wait_s: float) -> Service:
    return service_of(source_of(place, hot_bytes=hot_bytes, max_wait_s=max_wait_s), model)
