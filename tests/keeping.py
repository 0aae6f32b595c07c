"""A cache in a dict, and tables that are written as they should be: by asking for every node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from handler.cache.outputs import Outputs
from handler.cache.protocol import Found
from handler.cache.table import FORMAT_VERSION, TableManifest, written_table
from handler.graph.fanout import FanoutPlan
from handler.graph.live_graph import LiveGraph
from handler.graph.snapshot import Snapshot
from handler.inputs import ModelInputs
from handler.model.exported import Model
from handler.settings import Settings


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
