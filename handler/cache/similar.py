"""The nearest rows of a table, by approximate indexes that are mapped beside it.

    table-SEQ/similar-dot/index.json
    table-SEQ/similar-dot/range-0.usearch      the longest embeddings
    table-SEQ/similar-dot/range-1.usearch      shorter ones
    table-SEQ/similar-dot/node.npy             int64 [num_nodes], cell by cell
    table-SEQ/similar-dot/start.npy            int64 [num_cells + 1], where each cell's nodes begin

A graph index such as HNSW finds neighbors by distance, and an inner product is none: long vectors are near to
everything. So vectors are put in ranges by their norms. In a range with the largest norm U a vector x becomes
[x / U, sqrt(1 - |x|^2 / U^2)], of length 1, and a query [q / |q|, 0]: their inner product orders as that of x
and q. Ranges are narrow, so that the last component is small; and they are asked by falling norm, until no
vector of the next one can be among the best. The cosine is the case of vectors of length 1, all in one range.

Many nodes with the same embedding, as those without features and neighbors have, would know only each other
in such an index, and be found by nobody. So an index holds cells of nodes that are equal but for rounding.

Source: Yan et al., Norm-Ranging LSH for Maximum Inner Product Search, 2018; Malkov and Yashunin, Efficient
and Robust Approximate Nearest Neighbor Search Using Hierarchical Navigable Small World Graphs, 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from handler.cache.described import check_files, read_description
from handler.errors import SnapshotError, TableError
from handler.graph.manifest import array_path
from handler.graph.snapshot import map_array

if TYPE_CHECKING:
    from usearch.index import Index

FORMAT_VERSION = 1
MANIFEST_NAME = "index.json"
Metric = Literal["cosine", "dot"]
METRICS: tuple[Metric, ...] = get_args(Metric)
#: A range of so many cells is searched through, and may be as wide as it is.
EXHAUSTIVE = 512
_ROUNDING = 1e-4  # what single precision may make of a score


@dataclass(frozen=True)
class _Search:
    """How many candidates are looked at within an index, and given: so many for each, and so many more."""

    expansion: int
    spread: int
    spare: int


# The last component takes queries by the inner product away from all vectors, where more must be looked at.
_SEARCHES: dict[Metric, _Search] = {"cosine": _Search(96, 2, 16), "dot": _Search(256, 4, 32)}


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file of an index; for the checksums see `handler.graph.manifest`."""

    checksum: str
    spot_checksum: str


class RangeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The embeddings of a range of norms."""

    max_norm: float
    num_cells: int


class IndexManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`index.json`.

    Args:
        dim: of the embeddings.
        num_nodes: in it.
        ranges: by falling norm; cells are numbered through all of them.
        files: by name.
    """

    format_version: int
    metric: Metric
    dim: int
    num_nodes: int
    ranges: tuple[RangeEntry, ...]
    files: dict[str, FileEntry]

    @property
    def num_cells(self) -> int:
        """Of all ranges."""
        return sum(each.num_cells for each in self.ranges)


@dataclass(frozen=True)
class _Range:
    max_norm: float
    index: Index


class SimilarIndex:
    """Candidates for the nodes of a table whose embeddings are most similar to others.

    Args:
        start, node: the nodes of each cell; see above.
    """

    def __init__(
        self,
        metric: Metric,
        dim: int,
        ranges: list[_Range],
        start: NDArray[np.int64],
        node: NDArray[np.int64],
    ) -> None:
        self._search = _SEARCHES[metric]
        self._dim = dim
        self._ranges = ranges
        self._start = start
        self._node = node

    @classmethod
    def open(cls, table: Path, metric: Metric) -> SimilarIndex:
        """Map the index of a table; small ones are checked byte by byte, larger ones at spots.

        Raises:
            TableError: it is missing, truncated, corrupt or of another format, or cannot be read here.
        """
        folder = index_folder(table, metric)
        manifest = read_description(folder / MANIFEST_NAME, IndexManifest, FORMAT_VERSION, "an index")
        if manifest.metric != metric:
            raise TableError(folder / MANIFEST_NAME, f"is of the metric {manifest.metric}")
        _check_files(folder, manifest)
        kind = np.dtype(np.int64)
        try:
            start = map_array(folder, "start", kind, (manifest.num_cells + 1,))
            node = map_array(folder, "node", kind, (manifest.num_nodes,))
        except SnapshotError as error:
            raise TableError(error.path, str(error).partition(": ")[2]) from None
        ranges = [
            _Range(entry.max_norm, _mapped(range_path(folder, number), metric, manifest.dim))
            for number, entry in enumerate(manifest.ranges)
        ]
        return cls(metric, manifest.dim, ranges, start, node)

    def search(self, vectors: NDArray[np.float32], top_k: int) -> NDArray[np.int64]:
        """The nodes of which the `top_k` most similar are likely to be some.

        Args:
            vectors: float32 [num_vectors, dim].

        Returns:
            int64 [num_vectors, more than `top_k`], the nearest first; -1 where there are fewer.
        """
        count = self._search.spread * top_k + self._search.spare
        norm = np.linalg.norm(vectors.astype(np.float64), axis=1)
        asked = np.zeros((len(vectors), self._dim + 1), dtype=np.float32)
        asked[:, :-1] = vectors / np.where(norm > 0, norm, 1.0)[:, None]
        nodes = np.full((len(vectors), count), -1, dtype=np.int64)
        scores = np.full((len(vectors), count), -np.inf)
        first_cell = 0
        for each in self._ranges:
            # By Cauchy and Schwarz no vector of the range, nor of those after it, scores more than its norm.
            going_on = np.flatnonzero(scores[:, top_k - 1] < (1 + _ROUNDING) * each.max_norm)
            if not len(going_on):
                break
            cells, cell_scores = _cells(each, asked[going_on], count)
            found, found_scores = self._members(cells + first_cell, cell_scores, count)
            both = np.concatenate([nodes[going_on], found], axis=1)
            both_scores = np.concatenate([scores[going_on], found_scores], axis=1)
            best = np.argsort(-both_scores, axis=1, kind="stable")[:, :count]
            nodes[going_on] = np.take_along_axis(both, best, axis=1)
            scores[going_on] = np.take_along_axis(both_scores, best, axis=1)
            first_cell += len(each.index)
        return nodes

    def _members(
        self, cells: NDArray[np.int64], cell_scores: NDArray[np.float64], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Nodes and scores, [num_vectors, count], of the first cells of each row that fill it."""
        nodes = np.full((len(cells), count), -1, dtype=np.int64)
        scores = np.full((len(cells), count), -np.inf)
        there = np.isfinite(cell_scores)
        first = self._start[np.where(there, cells, 0)]
        size = np.where(there, self._start[np.where(there, cells, 0) + 1] - first, 0)
        place = np.cumsum(size, axis=1) - size
        taken = np.clip(count - place, 0, size).ravel()
        cell = np.repeat(np.arange(cells.size), taken)
        within = np.arange(len(cell)) - np.repeat(np.cumsum(taken) - taken, taken)
        at = cell // cells.shape[1], place.ravel()[cell] + within
        nodes[at] = self._node[first.ravel()[cell] + within]
        scores[at] = cell_scores.ravel()[cell]
        return nodes, scores


def index_folder(table: Path, metric: Metric) -> Path:
    """Where the index of a table is, or would be."""
    return table / f"similar-{metric}"


def range_path(folder: Path, number: int) -> Path:
    """Where a range of an index is."""
    return folder / f"range-{number}.usearch"


def index_files(folder: Path, num_ranges: int) -> list[Path]:
    """The files of an index, without its manifest."""
    ranges = [range_path(folder, number) for number in range(num_ranges)]
    return [*ranges, array_path(folder, "start"), array_path(folder, "node")]


def empty_index(folder: Path, metric: Metric, dim: int) -> Index:
    """An index of unit vectors [dim + 1].

    Single precision: embeddings may all point in nearly one direction, and half would not tell them apart.

    Raises:
        TableError: the package for it is not installed; names the folder that it is for.
    """
    try:
        from usearch.index import Index  # an extra: only who asks for similar nodes needs it
    except ImportError:
        raise TableError(folder, "needs the package usearch: pip install 'hopserve[similar]'") from None
    return Index(
        ndim=dim + 1,
        metric="ip",
        dtype="f32",
        expansion_search=_SEARCHES[metric].expansion,
        enable_key_lookups=False,
    )


def lifted(
    embedding: NDArray[np.float32], norm: NDArray[np.float64], max_norm: NDArray[np.float64]
) -> NDArray[np.float32]:
    """float32 [num_vectors, dim + 1], of length 1: embeddings as the index of a range has them.

    Args:
        embedding: float32 [num_vectors, dim].
        norm: float64 [num_vectors], of each.
        max_norm: float64 [num_vectors], of the range of each; its own norm for the cosine.
    """
    vectors = np.empty((len(embedding), embedding.shape[1] + 1), dtype=np.float32)
    vectors[:, :-1] = embedding / max_norm[:, None]
    vectors[:, -1] = np.sqrt(np.maximum(0.0, 1.0 - (norm / max_norm) ** 2))
    return vectors


def _check_files(folder: Path, manifest: IndexManifest) -> None:
    paths = index_files(folder, len(manifest.ranges))
    if {path.name for path in paths} != set(manifest.files):
        raise TableError(folder / MANIFEST_NAME, "does not name the files of its ranges")
    try:
        num_bytes = sum(path.stat().st_size for path in paths)
        check_files({path: manifest.files[path.name] for path in paths}, num_bytes)
    except OSError as error:
        raise TableError(folder, f"cannot be read: {error}") from None


def _mapped(path: Path, metric: Metric, dim: int) -> Index:
    index = empty_index(path.parent, metric, dim)
    try:
        index.view(path)
    except RuntimeError as error:
        raise TableError(path, f"cannot be mapped: {error}") from None
    return index


def _cells(
    each: _Range, asked: NDArray[np.float32], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Cells of a range and their scores, [len(asked), at most `count`]; -inf where there are fewer."""
    size = len(each.index)
    found = each.index.search(asked, min(count, size), threads=1, exact=size <= EXHAUSTIVE)
    # Of one vector alone it gives one row, without what is missing.
    cells, distances = np.atleast_2d(found.keys), np.atleast_2d(found.distances)
    num_found = getattr(found, "counts", np.array([cells.shape[1]]))
    there = np.arange(cells.shape[1]) < num_found[:, None]
    return cells.astype(np.int64), np.where(there, (1.0 - distances) * each.max_norm, -np.inf)
