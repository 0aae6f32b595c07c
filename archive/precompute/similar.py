"""Builds the indexes by which the nodes of a table that are similar to others are found."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.cache.similar import (
    EXHAUSTIVE,
    FORMAT_VERSION,
    MANIFEST_NAME,
    FileEntry,
    IndexManifest,
    Metric,
    RangeEntry,
    empty_index,
    index_files,
    index_folder,
    lifted,
    range_path,
)
from handler.cache.table import Table
from handler.errors import HopserveError, TableError
from handler.graph.durable import replace_file, replaced_folder
from handler.graph.manifest import array_path, file_checksum, spot_checksum
from handler.graph.progress import SILENT, Advance, Progress

_LEAST_RATIO = 0.9  # of the norms in a range
_SHORT = 1e-3  # of the largest norm: what is shorter is hardly ever asked for, and is one range
_BLOCK_ROWS = 1 << 14
_CELL = 2.0**-16  # the side of a cell: what rounding makes of equal embeddings is far less


def check_indexes(metrics: Sequence[Metric]) -> None:
    """Raise a `HopserveError` if indexes are wanted and cannot be made here: before all else is done."""
    if metrics and find_spec("usearch") is None:
        raise HopserveError(
            "an index of similar nodes needs the package usearch:"
            " pip install 'hopserve[similar]', or do without by --index none"
        )


def build_index(table: Table, metric: Metric, dim: int, progress: Progress = SILENT) -> Path:
    """Write the index of a table, in place of an older one; who has that mapped keeps it.

    Embeddings of length 0, and those that are not finite, are left out. It is made by several threads, so
    that it is another one each time, which finds the same nodes but for a few in a hundred.

    Args:
        dim: of the embeddings, the first columns of the table.

    Raises:
        TableError: it cannot be written, or the package for it is not installed.
    """
    target = index_folder(table.folder, metric)
    try:
        with replaced_folder(target) as folder:
            manifest = _Builder(table, metric, dim, folder).build(progress)
            text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
            replace_file(folder / MANIFEST_NAME, text + b"\n")
    except OSError as error:
        raise TableError(target, f"cannot be written: {error.strerror}") from None
    except RuntimeError as error:  # the index's own, of the disk too
        raise TableError(target, f"cannot be written: {error}") from None
    return target


class _Builder:
    def __init__(self, table: Table, metric: Metric, dim: int, folder: Path) -> None:
        self._table = table
        self._metric: Metric = metric
        self._dim = dim
        self._folder = folder
        self._norm = np.empty(table.manifest.num_nodes)
        for rows in _blocks(len(self._norm)):
            self._norm[rows] = np.linalg.norm(table.output[rows, :dim].astype(np.float64), axis=1)

    def build(self, progress: Progress) -> IndexManifest:
        usable = np.flatnonzero(np.isfinite(self._norm) & (self._norm > 0))
        ranges = [usable] if self._metric == "cosine" else _ranges(self._norm, usable)
        entries: list[RangeEntry] = []
        sizes: list[NDArray[np.int64]] = []
        members: list[NDArray[np.int64]] = []
        with progress.bar(f"index by {self._metric}", len(usable), "node") as advance:
            for nodes in ranges:
                if len(nodes):
                    member, size = self._cells(nodes)
                    max_norm = self._write(len(entries), member, size, advance)
                    entries.append(RangeEntry(max_norm=max_norm, num_cells=len(size)))
                    members.append(member)
                    sizes.append(size)
        nothing = np.empty(0, dtype=np.int64)
        np.save(array_path(self._folder, "node"), np.concatenate([nothing, *members]))
        start = np.concatenate([[0], np.cumsum(np.concatenate([nothing, *sizes]))])
        np.save(array_path(self._folder, "start"), start.astype(np.int64))
        return IndexManifest(
            format_version=FORMAT_VERSION,
            metric=self._metric,
            dim=self._dim,
            num_nodes=len(usable),
            ranges=tuple(entries),
            files={
                path.name: FileEntry(checksum=file_checksum(path), spot_checksum=spot_checksum(path))
                for path in index_files(self._folder, len(entries))
            },
        )

    def _cells(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The nodes of a range, cell by cell, by each cell's first; and how many each has."""
        codes = np.empty(len(nodes), dtype=np.uint64)
        longest = self._longest(nodes)
        factors = np.random.default_rng(0).integers(0, 2**63, self._dim + 1, dtype=np.uint64) * 2 + 1
        for rows in _blocks(len(nodes)):
            vectors = self._vectors(nodes[rows], longest[rows])
            grid = np.rint(vectors / _CELL).astype(np.int64).astype(np.uint64)
            codes[rows] = (grid * factors).sum(axis=1, dtype=np.uint64)
        _, first, cell = np.unique(codes, return_index=True, return_inverse=True)
        number = np.empty_like(first)
        number[np.argsort(first)] = np.arange(len(first))
        return nodes[np.argsort(number[cell], kind="stable")], np.bincount(number[cell])

    def _write(
        self, number: int, member: NDArray[np.int64], size: NDArray[np.int64], advance: Advance
    ) -> float:
        """Write a range, by one node of each cell; the largest norm in it."""
        index = empty_index(self._folder, self._metric, self._dim)
        num_threads = len(os.sched_getaffinity(0))
        longest = self._longest(member)
        start = np.cumsum(size) - size
        done = 0
        for cells in _blocks(len(size)):
            first = start[cells]
            vectors = self._vectors(member[first], longest[first])
            index.add(done + np.arange(len(first)), vectors, threads=num_threads)
            done += len(first)
            advance(int(size[cells].sum()))
        index.save(range_path(self._folder, number))
        return 1.0 if self._metric == "cosine" else float(longest[0])

    def _longest(self, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64 [len(nodes)]: by what the embeddings of a range are divided."""
        norm = self._norm[nodes]
        return norm if self._metric == "cosine" else np.full(len(nodes), norm.max())

    def _vectors(self, nodes: NDArray[np.int64], longest: NDArray[np.float64]) -> NDArray[np.float32]:
        return lifted(self._table.output[nodes, : self._dim], self._norm[nodes], longest)


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK_ROWS, count)) for start in range(0, count, _BLOCK_ROWS))


def _ranges(norm: NDArray[np.float64], usable: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The nodes of each range of norms, ascending; the range of the longest first."""
    falling = usable[np.argsort(-norm[usable], kind="stable")]
    fallen = -norm[falling]
    start = 0
    while start < len(falling):
        longest = fallen[start]
        narrow = int(np.searchsorted(fallen, _LEAST_RATIO * longest, side="right"))
        end = min(max(narrow, start + EXHAUSTIVE), len(falling))
        if longest > _SHORT * fallen[0]:
            end = len(falling)
        yield np.sort(falling[start:end])
        start = end
