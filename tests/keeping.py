"""Services that keep answers: in a dict, and in tables written by asking for every node."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from archive.precompute.similar import build_index
from handler import metrics
from handler.afterwards import Afterwards
from handler.cache.outputs import Outputs
from handler.cache.protocol import Found
from handler.cache.similar import METRICS
from handler.cache.store import Store
from handler.cache.table import FORMAT_VERSION, Table, TableManifest, tables_in, written_table
from handler.graph.fanout import FanoutPlan
from handler.graph.live_graph import LiveGraph
from handler.graph.snapshot import Snapshot
from handler.graph.views import StaticViews
from handler.graph.writer import BuildPlan
from handler.inputs import ModelInputs
from handler.model.exported import Model
from handler.service import Service
from handler.settings import Settings
from tests.graphs import SmallGraph
from tests.live import Change
from tests.models import random_model
from tests.served import RING, loaded

MODEL = random_model((3, 2))[0]
TAG = 77


class DictCache:
    """What is put is there at once."""

    def __init__(self) -> None:
        self.rows: dict[int | str, Outputs] = {}

    def get(self, node_ids: Sequence[int | str]) -> Found:
        place = [number for number, node_id in enumerate(node_ids) if node_id in self.rows]
        return Found(np.array(place, dtype=np.int64), joined([self.rows[node_ids[each]] for each in place]))

    def put(self, node_ids: Sequence[int | str], outputs: Outputs) -> None:
        for number, node_id in enumerate(node_ids):
            self.rows[node_id] = outputs.take(np.array([number]))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def joined(rows: Sequence[Outputs]) -> Outputs:
    """Several outputs as one."""
    if not rows:
        none = np.empty(0, dtype=np.int64)
        return Outputs(
            np.empty((0, 0), np.float32), none.astype(np.uint64), none, none, none.astype(np.int32)
        )
    return Outputs(
        np.concatenate([each.output for each in rows]),
        np.concatenate([each.fingerprint for each in rows]),
        np.concatenate([each.seq for each in rows]),
        np.concatenate([each.computed_us for each in rows]),
        np.concatenate([each.num_nodes for each in rows]),
    )


def write_table(
    versions: Path, graph: Snapshot | LiveGraph, model: Model, tag: int, computed: float | None = None
) -> None:
    """The table of a graph as it is, by the model itself, node by node."""
    inputs = ModelInputs(graph, model.signature, Settings(graph=""))
    everyone = np.arange(graph.num_nodes)
    sampled = inputs.sample(everyone, FanoutPlan.of(model.signature.layer_fanouts))
    output = model.run(inputs.gather(inputs.arrange(sampled)))
    signature = model.signature
    manifest = TableManifest(
        format_version=FORMAT_VERSION,
        model_name="model",
        model_version="1.0",
        tag=f"{tag:x}",
        snapshot_id=graph.manifest.snapshot_id,
        seq=graph.seq,
        computed=time.time() if computed is None else computed,
        num_nodes=graph.num_nodes,
        dim=signature.embedding_dim + signature.prediction_dim,
    )
    with written_table(versions, manifest) as folder:
        np.save(folder / "output.npy", np.concatenate([output.embedding, output.prediction], axis=1))
        np.save(folder / "fingerprint.npy", inputs.fingerprints(sampled, tag))
        np.save(folder / "sampled.npy", np.diff(sampled.trees.ptr).astype(np.int32))


class Keeping:
    """A service with a store, over a graph that is changed directly.

    Args:
        late: what comes after answers waits for `afterwards.catch_up`.
    """

    def __init__(
        self,
        folder: Path,
        graph: SmallGraph = RING,
        plan: BuildPlan | None = None,
        config: Any = MODEL,
        *,
        late: bool = False,
        **options: Any,
    ) -> None:
        self.model = loaded(config)
        self.afterwards = Afterwards()
        if late:
            self.afterwards.postpone()
        self.snapshot = graph.to_snapshot(plan or BuildPlan())
        self.graph = LiveGraph(self.snapshot, config.sampling)
        self.cache = DictCache()
        self.versions = folder / "1.0"
        signature = self.model.signature
        dim = signature.embedding_dim + signature.prediction_dim
        self.store = Store(TAG, dim, self.versions, self.cache)
        self.counters = metrics.Counters()
        graph_settings = Settings(graph="", **options)

        def source(sampling: Any, make: Callable[[LiveGraph], Any]) -> Any:
            return StaticViews(self.graph, make)

        self.service = Service(
            source, self.model, graph_settings, self.counters, "1.0", self.store, self.afterwards
        )

    def precompute(self, **options: Any) -> None:
        write_table(self.versions, self.graph, self.model, TAG, **options)
        self.store.look()

    def index(self) -> None:
        """Build the indexes of the table, and take them up."""
        (table,) = tables_in(self.versions)
        for metric in METRICS:
            build_index(Table.open(table), metric, self.model.signature.embedding_dim)
        self.store.look()

    def apply(self, change: Change) -> None:
        self.graph.apply(change.to_mutations(self.graph.num_nodes), self.graph.seq + 1)
        self.graph.seq += 1

    def ask(self, **request: object) -> dict[str, Any]:
        (answer,) = self.service.answer([json.dumps(request).encode()])
        assert answer.status == 200, answer.body
        return dict(json.loads(answer.body))

    def sources(self, **options: object) -> str:
        """The first letter of each node's source."""
        ids = self.graph.ids.id_of(np.arange(self.graph.num_nodes))
        return "".join(row["source"][0] for row in self.ask(node_ids=ids, **options)["predictions"])

    def counted(self, metric: metrics.Metric) -> dict[tuple[str, ...], float]:
        return {labels: amount for (each, labels), amount in self.counters.drain().items() if each == metric}
