"""A packed model version with a table, and the worker that would answer from both."""

from __future__ import annotations

import json
import zipfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from archive.checkpoint import ModelConfig
from gateway.degraded.answering import Degraded, DegradedAnswers
from gateway.degraded.tables import LastAnswers
from gateway.upstream.properties import ServerProperties
from handler.cache.table import versions_folder
from handler.cache.tags import tag_of
from handler.graph.follower import open_source
from handler.graph.home import write_home
from handler.graph.snapshot import Snapshot
from handler.graph.writer import write_snapshot
from handler.keeping import embeddings_folder, open_store
from handler.metrics import Counters
from handler.model.exported import ExportedModel
from handler.service import Service
from handler.settings import Settings
from tests.graphs import SmallGraph
from tests.keeping import MODEL, write_table
from tests.served import RING, loaded

ANY_AGE = 1e12


@dataclass
class Version:
    """Version 1.0 of the model `sage`, in a model store, and its graph.

    Args:
        home: whether the graph is one that changes.
    """

    folder: Path
    shape: SmallGraph = RING
    config: ModelConfig = MODEL
    home: bool = True
    settings: dict[str, Any] = field(default_factory=dict)
    model: ExportedModel = field(init=False)
    last: LastAnswers = field(init=False)

    def __post_init__(self) -> None:
        self.model = loaded(self.config)
        (write_home if self.home else write_snapshot)(self.graph, self.shape.to_arrays())
        self.store.mkdir(exist_ok=True)
        self.pack()
        self.last = LastAnswers(self.properties, look_s=0)

    @property
    def graph(self) -> Path:
        return self.folder / "graph"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def properties(self) -> ServerProperties:
        url = "http://127.0.0.1:1"
        return ServerProperties(
            self.folder / "c", url, url, url, self.store, self.folder / "k", token_auth=False
        )

    @property
    def parsed(self) -> Settings:
        return Settings(graph=str(self.graph), cache="off", warm_up=False, **self.settings)

    @property
    def tables(self) -> Path:
        return versions_folder(embeddings_folder(self.parsed), "sage", "1.0")

    def pack(self, **section: Any) -> None:
        """Put the archive into the store, without the files that nobody needs here."""
        section = {"graph": str(self.graph), **self.settings, **section}
        write_archive(
            self.store / "sage-1.0.mar",
            {
                "model-config.yaml": yaml.safe_dump({"minWorkers": 1, "handler": section}),
                "signature.json": msgspec.json.encode(self.model.signature),
            },
        )

    def precompute(self, **options: Any) -> None:
        tag = tag_of(self.model.signature, self.graph)
        write_table(self.tables, Snapshot.open(self.graph), self.model, tag, **options)

    def ask(self, request: object) -> tuple[int, Any]:
        """Status and JSON of a degraded answer."""
        answer = self.degraded(request)
        return answer.status, json.loads(answer.body)

    def degraded(self, request: object) -> Degraded:
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        return DegradedAnswers(self.last).answer("sage", "1.0", body)

    def worker(self, *requests: object) -> list[tuple[int, Any]]:
        """Status and JSON of what a worker answers, one request after the other."""
        settings = self.parsed
        store = open_store(settings, self.model.signature, "sage", "1.0", Counters())
        service = Service(open_source(Path(settings.graph)), self.model, settings, Counters(), "1.0", store)
        answers = []
        with closing(service):
            for request in requests:
                body = request if isinstance(request, bytes) else json.dumps(request).encode()
                (response,) = service.answer([body])
                answers.append((response.status.value, json.loads(response.body)))
        return answers


def write_archive(path: Path, files: dict[str, Any], model: str = "sage", version: str = "1.0") -> None:
    """A `.mar` file, in one step."""
    draft = path.with_suffix(".draft")
    with zipfile.ZipFile(draft, "w") as archive:
        named = {"modelName": model, "modelVersion": version, "handler": "entry.py"}
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": named}))
        for name, content in files.items():
            archive.writestr(name, content)
    draft.replace(path)


def undated(answer: Any) -> Any:
    """An answer without its age and without what says that it is degraded, to be compared."""
    if isinstance(answer, list):
        return [undated(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    return {key: undated(value) for key, value in answer.items() if key not in {"age_ms", "degraded"}}
