"""What is kept of the answers of one model version: the latest table, and the cache."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from handler.cache.protocol import OutputCache
from handler.cache.similar import METRICS, Metric, SimilarIndex, index_folder
from handler.cache.table import Table, tables_in
from handler.errors import TableError

_log = logging.getLogger(__name__)
_CHECK_S = 1.0
_MEAN_ROWS = 1 << 16


@dataclass(frozen=True)
class Kept:
    """A table that is in use.

    Args:
        mean: float32 [dim], of up to 65,536 usable rows all over it; none without any.
        similar: the indexes of its rows that there are.
    """

    table: Table
    mean: NDArray[np.float32] | None
    similar: Mapping[Metric, SimilarIndex] = field(default_factory=dict)


class Store:
    """Where the answers of one model version on one graph are kept.

    Args:
        tag: of the model's files and the graph; what has another one is not used.
        dim: columns of an output.
        versions: folder of the version's tables; a newer one is taken up while this runs.
        cache: of single answers, or none; closed with this.
    """

    def __init__(self, tag: int, dim: int, versions: Path, cache: OutputCache | None = None) -> None:
        self.tag = tag
        self.cache = cache
        self._dim = dim
        self._versions = versions
        self._kept: Kept | None = None
        self._refused: set[tuple[Path, int]] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.look()

    @property
    def kept(self) -> Kept | None:
        """The table that is in use now; the same for a whole batch, for who asks once."""
        return self._kept

    def watch(self) -> None:
        """From now on look for newer tables in the background."""
        self._thread = threading.Thread(target=self._run, name="hopserve-tables", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Take up the newest table, and its indexes; what cannot be used is left, with a warning."""
        for folder in tables_in(self._versions):
            stamp = _stamp(folder)
            if self._kept is not None and self._kept.table.stamp == stamp:
                break
            if stamp is None or (folder, stamp) in self._refused:
                continue
            try:
                self._kept = self._opened(folder)
            except TableError as error:
                self._refuse(folder, stamp, error)
            else:
                _log.info("answers come from the table %s", folder)
                break
        if self._kept is not None:
            self._kept = self._with_indexes(self._kept)

    def _with_indexes(self, kept: Kept) -> Kept:
        found = dict(kept.similar)
        for metric in METRICS:
            folder = index_folder(kept.table.folder, metric)
            stamp = _stamp(folder)
            if metric in found or stamp is None or (folder, stamp) in self._refused:
                continue
            try:
                found[metric] = SimilarIndex.open(kept.table.folder, metric)
            except TableError as error:
                self._refuse(folder, stamp, error)
            else:
                _log.info("similar nodes by %s are found in %s", metric, folder)
        return kept if len(found) == len(kept.similar) else replace(kept, similar=found)

    def _refuse(self, folder: Path, stamp: int, error: TableError) -> None:
        self._refused.add((folder, stamp))
        _log.warning("not used: %s", error)

    def close(self) -> None:
        """Stop looking, and close the cache."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self.cache is not None:
            self.cache.close()

    def _opened(self, folder: Path) -> Kept:
        table = Table.open(folder)
        if int(table.manifest.tag, 16) != self.tag:
            raise TableError(
                folder, "is of other files of the model, or of another graph: precompute it anew"
            )
        if table.manifest.dim != self._dim:
            raise TableError(folder, f"has {table.manifest.dim} columns, the model gives {self._dim}")
        return Kept(table, _mean(table))

    def _run(self) -> None:
        while not self._stopping.wait(_CHECK_S):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - answers go on from what there is
                _log.exception("looking for a newer table failed")


def _stamp(folder: Path) -> int | None:
    """Tells a folder from another one in its place; none without any."""
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        return None


def _mean(table: Table) -> NDArray[np.float32] | None:
    num_nodes = table.manifest.num_nodes
    places = np.unique(np.linspace(0, num_nodes - 1, num=min(num_nodes, _MEAN_ROWS)).astype(np.int64))
    rows = table.rows(places)
    usable = rows.output[rows.fingerprint != 0]
    return usable.mean(axis=0, dtype=np.float64).astype(np.float32) if len(usable) else None
