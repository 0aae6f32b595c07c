"""Finds the last precomputed answers of each model version that a model store holds."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from gateway.degraded.archives import Archive, read_archive
from gateway.degraded.graphs import Graphs, OpenGraph, Stamp, stamp_of
from gateway.upstream.properties import ServerProperties
from handler.answers import Composer
from handler.cache.table import MANIFEST_NAME, Table, tables_in, versions_folder
from handler.cache.tags import tag_of
from handler.errors import HopserveError, TableError
from handler.graph.layout import is_graph
from handler.graph.manifest import array_path
from handler.keeping import embeddings_folder

_log = logging.getLogger(__name__)
_LOOK_S = 1.0
_MAX_OPEN = 64
_TABLE_ARRAYS = ("output", "fingerprint", "sampled")


@dataclass(frozen=True)
class LastTable:
    """The newest table of a model version.

    Args:
        graph: in which nodes have the indices that they have in the table; its snapshot may be a later one.
        composer: of the version's answers.
    """

    archive: Archive
    table: Table
    stamp: Stamp
    graph: OpenGraph
    composer: Composer


@dataclass(frozen=True)
class NoTable:
    """That a model version has no table which can be used.

    Args:
        archive: of the version; none if the store has none.
        why: in words for clients.
    """

    archive: Archive | None
    why: str


class LastAnswers:
    """The tables of all model versions of a model store, each opened when it is first asked for.

    All of it may be called from several threads.

    Args:
        properties: of the TorchServe that serves this store.
        graph: used instead of those that archives name, as `HOPSERVE_GRAPH` is by workers.
        look_s: newer archives, tables and snapshots are looked for at most this often.
        max_open: so many versions have their files mapped; those asked for last.
    """

    def __init__(
        self,
        properties: ServerProperties,
        *,
        graph: Path | None = None,
        look_s: float = _LOOK_S,
        max_open: int = _MAX_OPEN,
    ) -> None:
        self.properties = properties
        self._graph = graph
        self._look_s = look_s
        self._max_open = max_open
        self._lock = threading.Lock()
        self._due = -math.inf
        self._read: dict[Path, tuple[Stamp, Archive | None]] = {}
        self._archives: dict[tuple[str, str], Archive] = {}
        self._watched: OrderedDict[tuple[str, str], _Watched] = OrderedDict()
        self._graphs = Graphs()

    def find(self, model: str, version: str) -> LastTable | NoTable:
        """The newest table of a model version, as it was at most `look_s` ago; raises nothing."""
        with self._lock:
            self._look()
            archive = self._archives.get((model, version))
            if archive is None:
                self._watched.pop((model, version), None)
                return NoTable(None, "the model store has no archive of this model version")
            watched = self._watched.get((model, version))
            if watched is None or watched.archive is not archive:
                watched = self._watched[model, version] = _Watched(archive, self._graphs, self._look_s)
            self._watched.move_to_end((model, version))
            while len(self._watched) > self._max_open:
                self._watched.popitem(last=False)
        return watched.last()

    def knows(self, model: str, version: str) -> bool:
        """Whether the store had such an archive when it was looked at last."""
        return (model, version) in self._archives

    def warm_up(self) -> None:
        """Open what there is, so that the first who asks does not wait for it."""
        with self._lock:
            self._look()
            names = list(self._archives)[: self._max_open]
        for name in names:
            self.find(*name)

    def _look(self) -> None:
        if time.monotonic() < self._due:
            return
        read: dict[Path, tuple[Stamp, Archive | None]] = {}
        for path in sorted(self.properties.model_store.glob("*.mar")):
            stamp, known = stamp_of([path]), self._read.get(path)
            read[path] = known if known is not None and known[0] == stamp else (stamp, self._archive(path))
        self._read = read
        self._archives = {
            (archive.model, archive.version): archive for _, archive in read.values() if archive is not None
        }
        self._due = time.monotonic() + self._look_s

    def _archive(self, path: Path) -> Archive | None:
        try:
            archive = read_archive(path)
        except (HopserveError, OSError) as error:
            _log.warning("not used: %s", error)
            return None
        if archive is None or self._graph is None:
            return archive
        settings = msgspec.structs.replace(archive.settings, graph=str(self._graph))
        return Archive(archive.model, archive.version, archive.signature, settings)


class _Absent(HopserveError):
    """There is no graph or no table, or it was replaced while it was opened."""


class _Watched:
    """The last table of one archive."""

    def __init__(self, archive: Archive, graphs: Graphs, look_s: float) -> None:
        self.archive = archive
        self._graphs = graphs
        self._look_s = look_s
        self._lock = threading.Lock()
        self._found: LastTable | NoTable | None = None
        self._due = -math.inf
        self._was_absent = False
        self._said = ""

    def last(self) -> LastTable | NoTable:
        """The table that counts; looked for again if it is time, by one thread, for which no other waits."""
        found = self._found
        if found is not None and time.monotonic() < self._due:
            return found
        if not self._lock.acquire(blocking=found is None):
            assert found is not None  # noqa: S101 - else it would have waited
            return found
        try:
            if self._found is None or time.monotonic() >= self._due:
                self._found = self._look(self._found)
                self._due = time.monotonic() + self._look_s
            return self._found
        finally:
            self._lock.release()

    def _look(self, before: LastTable | NoTable | None) -> LastTable | NoTable:
        last = before if isinstance(before, LastTable) else None
        try:
            found = self._newest(last)
        except _Absent as error:
            # While a folder takes another one's place, there is none for an instant.
            if last is not None and not self._was_absent:
                self._was_absent = True
                return last
            return self._none(str(error))
        except (HopserveError, OSError, ValueError) as error:
            return self._none(str(error))
        self._was_absent = False
        self._said = ""
        return found

    def _none(self, reason: str) -> NoTable:
        if reason != self._said:
            archive = self.archive
            _log.warning("no precomputed answers for %s %s: %s", archive.model, archive.version, reason)
            self._said = reason
        # Its paths are nothing for clients.
        return NoTable(self.archive, "there is no table of precomputed answers that could be used")

    def _newest(self, last: LastTable | None) -> LastTable:
        """The newest table that can be used; what is open already stays so if nothing changed."""
        archive, folder = self.archive, Path(self.archive.settings.graph)
        if not is_graph(folder):
            raise _Absent(f"{folder}: there is no graph")
        graph = self._graphs.of(folder)
        versions = versions_folder(embeddings_folder(archive.settings), archive.model, archive.version)
        errors: list[str] = []
        for place in tables_in(versions):
            files = [place / MANIFEST_NAME, *(array_path(place, name) for name in _TABLE_ARRAYS)]
            stamp = stamp_of(files)
            if last is not None and last.graph is graph and (last.table.folder, last.stamp) == (place, stamp):
                return last
            try:
                table = _open_table(place, archive, tag_of(archive.signature, folder))
            except (TableError, OSError, ValueError) as error:
                if stamp_of(files) != stamp:
                    raise _Absent(f"{place}: was replaced while it was opened") from None
                errors.append(str(error))
                continue
            composer = Composer(archive.signature, graph.snapshot, archive.version)
            _log.info("degraded answers come from the table %s", place)
            return LastTable(archive, table, stamp, graph, composer)
        if errors:
            raise TableError(versions, "; ".join(errors))
        raise _Absent(f"{versions}: there is no table: `hopserve precompute` makes one")


def _open_table(folder: Path, archive: Archive, tag: int) -> Table:
    table = Table.open(folder)
    manifest = table.manifest
    if int(manifest.tag, 16) != tag:
        raise TableError(folder, "is of other files of the model, or of another graph: precompute it anew")
    if manifest.dim != archive.signature.output_dim:
        raise TableError(
            folder, f"has {manifest.dim} columns, the model gives {archive.signature.output_dim}"
        )
    if not 0 <= manifest.computed < np.iinfo(np.int64).max / 1e6:
        raise TableError(folder, f"says that it was computed at {manifest.computed}")
    return table
