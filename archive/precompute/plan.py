"""What a run computes: one stage after the other, each in shards of nodes, and those in chunks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from archive.export.folder import LAYERS
from archive.reading import PackedModel
from handler.cache.tags import tag_of
from handler.errors import GraphInputError, ModelError
from handler.graph.fanout import FanoutPlan
from handler.graph.snapshot import Snapshot
from handler.model.signature import Signature, read_signature

CHUNK_BYTES = 64 << 20  # of the rows that a chunk takes
_MOST_CHUNK_NODES, _FEWEST_CHUNK_NODES = 16_384, 64


class Column(msgspec.Struct, frozen=True):
    """An array with a row for each node.

    Args:
        width: columns; none for a flat array.
    """

    name: str
    dtype: str
    width: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one row."""
        return () if self.width is None else (self.width,)

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return np.dtype(self.dtype).itemsize * (1 if self.width is None else self.width)


class Stage(msgspec.Struct, frozen=True):
    """What is computed of all nodes before the next stage begins.

    Args:
        layer: of the model, counted from 1; 0 for the whole model at once, over whole trees.
        num_layers: of the model.
        dim: columns of what it gives.
    """

    layer: int
    num_layers: int
    dim: int

    @property
    def name(self) -> str:
        """Of its folder, and for people."""
        return f"layer-{self.layer}-of-{self.num_layers}" if self.layer else "trees"

    @property
    def is_last(self) -> bool:
        """Whether it gives what the table holds."""
        return self.layer in {0, self.num_layers}

    @property
    def columns(self) -> tuple[Column, ...]:
        """What it gives of each node."""
        if not self.is_last:
            return (Column("state", "float32", self.dim),)
        return (
            Column("output", "float32", self.dim),
            Column("fingerprint", "uint64"),
            Column("sampled", "int32"),
        )


class WorkPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that decides what a run computes.

    Args:
        tag: of the model's file and the graph, in hexadecimal; see `handler.cache.tags`.
        snapshot_id, seq, num_nodes: of the snapshot.
        num_shards: parts of the nodes, each of which one command computes.
        chunk_nodes: nodes that are computed at once, at most.
        begun: in seconds since 1970; ages of edges count from then.
    """

    tag: str
    snapshot_id: str
    seq: int
    num_nodes: int
    num_shards: int
    chunk_nodes: int
    begun: float
    stages: tuple[Stage, ...]

    def shard(self, number: int) -> range:
        """The nodes of a shard, counted from 0."""
        first, end = (self.num_nodes * each // self.num_shards for each in (number, number + 1))
        return range(first, end)

    def chunks(self, number: int) -> list[range]:
        """The chunks of a shard."""
        nodes = self.shard(number)
        return [nodes[at : at + self.chunk_nodes] for at in range(0, len(nodes), self.chunk_nodes)]

    def is_same_as(self, other: WorkPlan) -> bool:
        """Whether what was computed by one is of use to the other, but for when they were begun."""
        return msgspec.structs.replace(self, begun=other.begun) == other


def planned(
    model: PackedModel, snapshot: Snapshot, num_shards: int = 1, chunk_nodes: int | None = None
) -> WorkPlan:
    """The plan for all nodes of a snapshot, begun now.

    Args:
        chunk_nodes: none for as many as take a moderate amount of memory.

    Raises:
        GraphInputError: the graph has no nodes.
        ModelError: the model's layers do not follow one another.
    """
    if not snapshot.num_nodes:
        raise GraphInputError(f"{snapshot.folder}: has no nodes, so there is nothing to compute")
    layers = layer_signatures(model)
    return WorkPlan(
        f"{tag_of(model.signature, Path(model.settings.graph)):x}",
        snapshot.manifest.snapshot_id,
        snapshot.manifest.seq,
        snapshot.num_nodes,
        num_shards,
        chunk_nodes or _moderate_chunk(model.signature, layers),
        time.time(),
        _stages(model.signature, layers),
    )


def layer_folder(model_folder: Path, layer: int) -> Path:
    """Where a layer is that is a model of its own."""
    return model_folder / LAYERS / str(layer)


def layer_signatures(model: PackedModel) -> list[Signature]:
    """Of the layers that are models of their own; none where the model has no such layers.

    Raises:
        ModelError: they do not follow one another.
    """
    whole = model.signature
    if whole.contract == "plain" or not (model.folder / LAYERS).is_dir():
        return []
    numbers = range(1, len(whole.layer_fanouts) + 1)
    layers = [read_signature(layer_folder(model.folder, number)) for number in numbers]
    follows = all(before.embedding_dim == after.feature_dim for before, after in itertools.pairwise(layers))
    last = layers[-1]
    if (
        not follows
        or layers[0].feature_dim != whole.feature_dim
        or (last.embedding_dim, last.prediction_dim) != (whole.embedding_dim, whole.prediction_dim)
        or sum((layer.layer_fanouts for layer in layers), ()) != whole.layer_fanouts
    ):
        raise ModelError(f"{model.name} {model.version}: its layers are not those of the model: export again")
    return layers


def _stages(whole: Signature, layers: Sequence[Signature]) -> tuple[Stage, ...]:
    dim, count = whole.embedding_dim + whole.prediction_dim, len(whole.layer_fanouts)
    if not layers:
        return (Stage(0, count, dim),)
    between = [Stage(number, count, layer.embedding_dim) for number, layer in enumerate(layers[:-1], start=1)]
    return (*between, Stage(count, count, dim))


def _moderate_chunk(whole: Signature, layers: Sequence[Signature]) -> int:
    rows, widest = FanoutPlan.of(whole.layer_fanouts).max_tree_nodes, whole.feature_dim
    if layers:
        rows = 1 + max(whole.layer_fanouts)
        widest = max(max(layer.feature_dim, layer.embedding_dim) for layer in layers)
    return max(_FEWEST_CHUNK_NODES, min(_MOST_CHUNK_NODES, CHUNK_BYTES // (4 * rows * widest)))
