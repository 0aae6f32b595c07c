"""The floor of a live answer: what its arithmetic and its reads alone cost on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from handler.graph.sampler import SampledTrees
from handler.graph.snapshot import Snapshot


@dataclass(frozen=True)
class FloorTimes:
    """Microseconds of one batch; no answer can be had without any of them.

    Args:
        matrices: to multiply the rows that each layer computes by its weights.
        rows: to copy the features of all tree nodes.
        adjacency: to read the sampled part of each row that is expanded.
    """

    matrices: float
    rows: float
    adjacency: float

    @property
    def total(self) -> float:
        return sum(astuple(self))


class Floor:
    """Measures the floor of batches of one graph and of a model of SAGEConv layers.

    Args:
        dims: of the features and of what each layer gives.
        fanout: of every layer.
    """

    def __init__(self, snapshot: Snapshot, dims: tuple[int, ...], fanout: int) -> None:
        adjacency, features = snapshot.adjacency, snapshot.features
        if features is None:
            raise ValueError(f"{snapshot.folder}: has no features to read")
        self._indptr, self._indices = adjacency.indptr, adjacency.indices
        self._x = features.arrays()["x"]
        self._fanout = fanout
        self._weights = [torch.rand(before, after) for before, after in zip(dims, dims[1:], strict=False)]

    def measure(self, trees: SampledTrees) -> FloorTimes:
        """Do for a batch only what cannot be left out; its trees must not have been read just before."""
        expanded = trees.node[trees.hop < len(self._weights)]
        rows = np.ones((len(trees.node), self._x.shape[1]), dtype=self._x.dtype)
        layers = [
            (torch.rand(count, len(weight)), weight, torch.empty(count, weight.size(1)))
            for count, weight in zip(self._num_computed(trees), self._weights, strict=True)
        ]
        return FloorTimes(
            rows=_timed_us(lambda: _copy_rows(self._x, trees.node, rows)),
            adjacency=_timed_us(lambda: _read_rows(self._indptr, self._indices, expanded, self._fanout)),
            matrices=_timed_us(lambda: _multiply(layers)),
        )

    def flops(self, trees: SampledTrees) -> int:
        """Of the matrices of a batch: each layer has one for the node itself, one for its neighbours."""
        computed = zip(self._num_computed(trees), self._weights, strict=True)
        return sum(2 * 2 * count * weight.numel() for count, weight in computed)

    def _num_computed(self, trees: SampledTrees) -> list[int]:
        """How many nodes each layer computes: those of all hops but the last, and so on."""
        last = len(self._weights)
        return [int((trees.hop < last - layer).sum()) for layer in range(last)]


def _timed_us(work: Callable[[], object]) -> float:
    started_ns = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - started_ns) / 1000


def _multiply(layers: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    for rows, weight, out in layers:
        torch.mm(rows, weight, out=out)
        torch.mm(rows, weight, out=out)


@numba.njit
def _copy_rows(x: NDArray[np.floating], nodes: NDArray[np.int64], out: NDArray[np.floating]) -> None:
    for place in range(len(nodes)):
        node = nodes[place]
        for column in range(x.shape[1]):
            out[place, column] = x[node, column]


@numba.njit
def _read_rows(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], nodes: NDArray[np.int64], fanout: int
) -> int:
    total = 0
    for node in nodes:
        start = indptr[node]
        for edge in range(start, min(start + fanout, indptr[node + 1])):
            total += indices[edge]
    return total
