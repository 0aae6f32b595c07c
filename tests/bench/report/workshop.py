"""What several parts need, made when the first of them needs it: the graph, the model, the server."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from archive.export.export import export_model
from archive.pack import GraphPlan, PackPlan, pack
from handler.graph.home import write_home
from handler.graph.snapshot import Snapshot
from tests.bench.pipeline import PLAN, Sage, power_law
from tests.bench.report.scale import Scale
from tests.bench.serving import pack_noop
from tests.servers import Server, running

MODEL = "sage"


class Workshop:
    """Use it in a `with` statement, at the end of which servers stop.

    Args:
        folder: for all that is made.
    """

    def __init__(self, folder: Path, scale: Scale) -> None:
        self.folder, self.scale = folder, scale
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @cached_property
    def model(self) -> Path:
        """The exported model."""
        export_model(Sage().eval(), PLAN, self.folder / "model")
        return self.folder / "model"

    @cached_property
    def graph(self) -> Path:
        """The home of the graph that is served."""
        return self._home("graph", self.scale.num_edges)

    @cached_property
    def compared_graph(self) -> Path:
        """The home of the graph that NetworkX has, too."""
        if self.scale.compared_edges == self.scale.num_edges:
            return self.graph
        return self._home("compared", self.scale.compared_edges)

    @cached_property
    def snapshot(self) -> Snapshot:
        """Of the graph that is served, before anything changes it."""
        return Snapshot.open(self.graph)

    @cached_property
    def server(self) -> Server:
        """TorchServe with the model, the no-op handler, and the graph to be changed."""
        model = self.pack(MODEL)
        noop = pack_noop(model, self.folder)
        graph = pack(GraphPlan(graph_folder=self.graph, settings={"compact_after": 0}), self._store)
        return self._open.enter_context(running(self.folder / "ts", model, noop, graph))

    def pack(
        self, name: str, *, num_workers: int = 1, batch_size: int = 64, graph: Path | None = None
    ) -> Path:
        """The model under another name."""
        plan = PackPlan(
            name,
            "1.0",
            model_folder=self.model,
            graph_folder=graph or self.graph,
            num_workers=num_workers,
            batch_size=batch_size,
        )
        return pack(plan, self._store)

    def register(self, archive: Path) -> None:
        """Have the server serve this archive, too."""
        shutil.copy(archive, self.server.properties.model_store)
        with self.server.client() as client:
            client.register(archive.name)

    def unregister(self, name: str) -> None:
        """Take a model out of the server again."""
        with self.server.client() as client:
            client.unregister(name, "1.0")

    @property
    def _store(self) -> Path:
        return self.folder / "store"

    def _home(self, name: str, num_edges: int) -> Path:
        write_home(self.folder / name, power_law(num_edges, self.scale.edges_per_node))
        return self.folder / name
