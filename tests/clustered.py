"""Services of a graph in a cluster, beside services of the snapshot that was pushed there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from handler.graph.opening import source_of
from handler.graph.snapshot import Snapshot
from handler.graph.views import Source, static_source
from handler.metrics import Counters
from handler.model.exported import Model
from handler.service import Service
from handler.settings import Settings
from tests.clusters import Cluster
from tests.served import TOLERANCE


class Gcn(nn.Module):
    """Two layers that are told the sizes of samples, also of nodes that are not expanded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = GCNConv(3, 5), GCNConv(5, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return hidden


def service_of(source: Source, model: Model) -> Service:
    """What answers from a graph."""
    return Service(source, model, Settings(graph=""), Counters(), "1.0")


def place_of(cluster: Cluster, name: str) -> str:
    """Of a graph in a cluster."""
    return f"redis+cluster{cluster.url.removeprefix('redis')}/{name}"


@contextmanager
def both(
    snapshot: Snapshot, cluster: Cluster, model: Model, name: str, hot_bytes: int = 0
) -> Iterator[tuple[Service, Service]]:
    """From the cluster, and from the snapshot."""
    ours = service_of(source_of(place_of(cluster, name), hot_bytes=hot_bytes), model)
    try:
        yield ours, service_of(static_source(snapshot), model)
    finally:
        ours.close()


def ask(service: Service, *requests: object) -> list[Any]:
    """Status and JSON of each request of one batch."""
    found = service.answer([json.dumps(request).encode() for request in requests])
    return [(response.status.value, json.loads(response.body)) for response in found]


def same(found: Any, wanted: Any) -> bool:
    """Whether two answers say the same, numbers to 1e-5."""
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, float):
        return abs(found - wanted) <= TOLERANCE * max(1, abs(wanted))
    return bool(found == wanted)
