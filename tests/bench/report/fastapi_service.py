"""The service that one writes first: FastAPI, a graph of NetworkX's in memory, one forward for each request.

It is not made to be slow: it samples the same neighbours as Hopserve (the first ten in the graph's order), so
that it answers the same; PyTorch has one thread, as more are slower on such small tensors; and uvicorn runs
with uvloop and httptools. `/whole` is what one writes before one thinks of sampling.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
import uvicorn
from fastapi import FastAPI
from numpy.typing import NDArray
from torch import nn
from torch_geometric.utils import from_networkx

from handler.graph.snapshot import Snapshot

_HOPS = 2


class Answers:
    """Embeddings of single nodes.

    Args:
        graph: nodes are 0, 1 and so on.
        x: float32 [num_nodes, feature_dim].
        fanout: of every hop.
    """

    def __init__(self, graph: nx.DiGraph, x: NDArray[np.float32], model: nn.Module, fanout: int) -> None:
        self._graph, self._x, self._fanout = graph, x, fanout
        self._model = model.eval()

    @classmethod
    def of(cls, snapshot: Snapshot, model: nn.Module, fanout: int) -> Answers:
        """Over the graph of a snapshot, whose order of neighbours NetworkX keeps."""
        adjacency = snapshot.adjacency
        target = np.repeat(np.arange(snapshot.num_nodes), np.diff(adjacency.indptr))
        graph = nx.DiGraph()
        graph.add_nodes_from(range(snapshot.num_nodes))
        graph.add_edges_from(zip(adjacency.indices.tolist(), target.tolist(), strict=True))
        if snapshot.features is None:
            raise ValueError(f"{snapshot.folder}: has no features")
        return cls(graph, snapshot.features.gather(np.arange(snapshot.num_nodes)), model, fanout)

    def sampled(self, node: int) -> list[float]:
        """From the first neighbours of two hops."""
        place, edges, frontier = {node: 0}, [], [node]
        for _ in range(_HOPS):
            following = []
            for target in frontier:
                for _, source in zip(range(self._fanout), self._graph.predecessors(target), strict=False):
                    if source not in place:
                        place[source] = len(place)
                        following.append(source)
                    edges.append((place[source], place[target]))
            frontier = following
        edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
        return self._embedding(np.fromiter(place, dtype=np.int64), edge_index, 0)

    def whole(self, node: int) -> list[float]:
        """From all neighbours of two hops."""
        near = nx.single_source_shortest_path_length(self._graph.reverse(copy=False), node, cutoff=_HOPS)
        subgraph = self._graph.subgraph(near)
        nodes = np.fromiter(subgraph, dtype=np.int64)
        return self._embedding(
            nodes, from_networkx(subgraph).edge_index, int(np.flatnonzero(nodes == node)[0])
        )

    def _embedding(self, nodes: NDArray[np.int64], edge_index: torch.Tensor, place: int) -> list[float]:
        with torch.inference_mode():
            out: list[float] = self._model(torch.from_numpy(self._x[nodes]), edge_index)[place].tolist()
        return out


def make_app(answers: Answers) -> FastAPI:
    """The service."""
    app = FastAPI()

    @app.get("/ready")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.post("/sampled")
    async def sampled(request: dict[str, Any]) -> dict[str, Any]:
        return {"node_id": request["node_id"], "embedding": answers.sampled(request["node_id"])}

    @app.post("/whole")
    async def whole(request: dict[str, Any]) -> dict[str, Any]:
        return {"node_id": request["node_id"], "embedding": answers.whole(request["node_id"])}

    return app


if __name__ == "__main__":
    from tests.bench.pipeline import LAYER_FANOUTS, Sage

    torch.set_num_threads(1)
    served = Answers.of(Snapshot.open(Path(sys.argv[1])), Sage(), LAYER_FANOUTS[0])
    uvicorn.run(
        make_app(served), host="127.0.0.1", port=int(sys.argv[2]), log_level="error", access_log=False
    )
