"""The floor of a live answer: what its arithmetic and its reads alone cost on this machine."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from handler.graph.sampler import SampledTrees
from handler.graph.snapshot import Snapshot

_TOUCHED_ROWS = 16
_LINE_FLOATS = 16  # of 64 bytes


class Stopwatch:
    """Notes how long each thing took, in microseconds per seed.

    Args:
        num_seeds: of each batch.
    """

    def __init__(self, num_seeds: int) -> None:
        self.taken_us: defaultdict[str, list[float]] = defaultdict(list)
        self._num_seeds = num_seeds

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Note the time of a block by this name."""
        started_ns = time.perf_counter_ns()
        yield
        self.taken_us[name].append((time.perf_counter_ns() - started_ns) / 1000 / self._num_seeds)


class Floor:
    """Does for batches of one graph, and for a model of SAGEConv layers, only what cannot be left out.

    That is: `matrices`, to multiply the rows that each layer computes by its weights; `rows`, to copy the
    features of all tree nodes; `adjacency`, to read the sampled part of each row that is expanded.

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
        self._weights = [torch.rand(before, after) for before, after in pairwise(dims)]

    def measure(self, trees: SampledTrees, stopwatch: Stopwatch) -> None:
        """Time one batch, which must not have been read just before."""
        expanded = trees.node[trees.hop < len(self._weights)]
        copied = np.ones((len(trees.node), self._x.shape[1]), dtype=self._x.dtype)
        layers = [
            (torch.rand(count, len(weight)), weight, torch.empty(count, weight.size(1)))
            for count, weight in zip(self._num_computed(trees), self._weights, strict=True)
        ]
        with stopwatch.timed("adjacency"):
            _read_rows(self._indptr, self._indices, expanded, self._fanout)
        with stopwatch.timed("rows"):
            _copy_rows(self._x, trees.node, copied)
        with stopwatch.timed("matrices"):
            for rows, weight, out in layers:
                torch.mm(rows, weight, out=out)  # what neighbours say
                torch.mm(rows, weight, out=out)  # the node itself

    def flops(self, trees: SampledTrees) -> int:
        """Of the matrices of a batch."""
        computed = zip(self._num_computed(trees), self._weights, strict=True)
        return sum(2 * 2 * count * weight.numel() for count, weight in computed)

    def _num_computed(self, trees: SampledTrees) -> list[int]:
        """How many nodes each layer computes: those of all hops but the last, and so on."""
        last = len(self._weights)
        return [int((trees.hop < last - layer).sum()) for layer in range(last)]


@numba.njit
def _copy_rows(x: NDArray[np.floating], nodes: NDArray[np.int64], out: NDArray[np.floating]) -> np.float32:
    """Copy rows, having touched a few at a time first, so that the memory answers many reads at once."""
    total = np.float32(0)
    for start in range(0, len(nodes), _TOUCHED_ROWS):
        end = min(start + _TOUCHED_ROWS, len(nodes))
        for place in range(start, end):
            node = nodes[place]
            for column in range(0, x.shape[1], _LINE_FLOATS):
                total += x[node, column]
        for place in range(start, end):
            node = nodes[place]
            for column in range(x.shape[1]):
                out[place, column] = x[node, column]
    return total


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
