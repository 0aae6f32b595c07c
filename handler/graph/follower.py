"""Keeps a graph up to date with its log, and moves on to new snapshots, while it is read."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from handler.errors import (
    HopserveError,
    LogCorrupt,
    LogError,
    LogGap,
    LogUnavailable,
    NotReady,
    SnapshotError,
)
from handler.graph.edges import EdgeFields
from handler.graph.home import GraphHome, HeldSnapshot, open_held
from handler.graph.live_graph import LiveGraph
from handler.graph.progress import SILENT, Progress
from handler.graph.sampling import Sampling
from handler.graph.views import Needs, Source, Standing, StaticViews, Views, standing_of
from handler.log.opening import open_log
from handler.log.protocol import Log

_log = logging.getLogger(__name__)
_View = TypeVar("_View")

_POLL_S = 0.004
_MOVE_CHECK_S = 0.5
_RETRY_S = 0.5
_CHUNK_BYTES = 1 << 15  # about 1,400 edges, which take one or two milliseconds
_BATCH_BUDGET_S = 0.003  # what a batch spends on mutations before it answers
_BETWEEN_CHUNKS_S = 0.0005  # in which those who wait for the lock get it


class Follower(Generic[_View]):
    """A graph that follows its log: before each reading, and in the background.

    Args:
        held: the snapshot to begin with, and its home; it is closed with this.
        log: of the graph.
        sampling: by which the graph is read.
        make: makes of a graph what is read; called again for every new snapshot.
        max_wait_s: how long a reading may wait for the mutation that it asks for.
        owns_log: whether the log is closed with this.

    Raises:
        LogError: the log cannot be read, or has not what follows the snapshot.
    """

    def __init__(
        self,
        held: HeldSnapshot,
        log: Log,
        sampling: Sampling | None,
        make: Callable[[LiveGraph], _View],
        *,
        max_wait_s: float = 0.2,
        owns_log: bool = False,
        progress: Progress = SILENT,
    ) -> None:
        if held.home is None:
            raise AssertionError("a bare snapshot has no log to follow")
        self._home: GraphHome = held.home
        self._held = held
        self._log = log
        self._sampling = sampling
        self._make = make
        self._max_wait_s = max_wait_s
        self._owns_log = owns_log
        self._reader = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        #: Why the graph is known to be wrong, or the log not to be there now.
        self._failure: str | None = None
        self._unavailable: str | None = None
        log.hold(self._reader, held.snapshot.seq)
        try:
            self._graph = self._caught_up(held, progress)
            self._view = make(self._graph)
        except BaseException:
            log.release(self._reader)
            raise
        self._thread = threading.Thread(target=self._run, name="hopserve-follower", daemon=True)
        self._thread.start()

    @contextmanager
    def reading(self, min_seq: int = 0, needs: Needs | None = None) -> Iterator[_View]:
        """See `Views`."""
        with self._lock:
            self._follow_for_batch(min_seq)
            if self._failure is not None:
                raise NotReady(self._failure)
            yield self._view

    @contextmanager
    def at_the_end(self) -> Iterator[LiveGraph]:
        """The graph with all that the log has; it does not change until the end of the block.

        Raises:
            NotReady: the graph is known to be wrong.
            LogUnavailable: the log cannot be read.
        """
        with self._lock:
            if self._failure is None:
                while self._read_on(self._graph):
                    pass
            if self._failure is not None:
                raise NotReady(self._failure)
            yield self._graph

    @property
    def log(self) -> Log:
        """The log that is followed."""
        return self._log

    @property
    def folder(self) -> Path:
        """Of the graph."""
        return self._home.folder

    @property
    def stopping(self) -> threading.Event:
        """Set when this is closed."""
        return self._stopping

    @property
    def current_seq(self) -> int:
        """The latest mutation in the snapshot that counts, even if this has not moved on to it yet."""
        return self._home.current_seq

    @property
    def num_snapshot_edges(self) -> int:
        """The edges of the snapshot that is read."""
        return self._held.snapshot.num_edges

    @property
    def edge_fields(self) -> EdgeFields:
        """What is known of each edge."""
        return self._graph.edge_fields

    @property
    def seq(self) -> int:
        """The latest mutation that counts."""
        return self._graph.seq

    def standing(self) -> Standing:
        """See `Views`."""
        try:
            lag = self.lag()
        except LogError:
            lag = None
        return standing_of(self._graph, lag)

    def lag(self) -> int:
        """How many mutations of the log do not count yet; `LogUnavailable` where it cannot be asked."""
        return max(0, self._log.last_seq() - self._graph.seq)

    def close(self) -> None:
        """Stop following, and let go of snapshot and log."""
        self._stopping.set()
        self._thread.join()
        try:
            self._log.release(self._reader)
        except HopserveError as error:
            _log.warning("%s", error)
        if self._owns_log:
            self._log.close()
        self._held.close()

    def _caught_up(self, held: HeldSnapshot, progress: Progress = SILENT) -> LiveGraph:
        """A graph of the snapshot and all that the log has."""
        graph = LiveGraph(held.snapshot, self._sampling)
        with progress.bar("reading the log", max(0, self._log.last_seq() - graph.seq), "mutation") as advance:
            before = graph.seq
            while self._read_on(graph):
                advance(graph.seq - before)
                before = graph.seq
        return graph

    def _read_on(self, graph: LiveGraph, max_bytes: int = _CHUNK_BYTES) -> bool:
        """Apply what follows in the log, as far as one read goes; whether there was anything."""
        if self._log.last_seq() == graph.seq:
            return False
        records = self._log.read(graph.seq, max_bytes)
        for record in records:
            graph.apply_record(record)
        return bool(records)

    def _follow_for_batch(self, min_seq: int) -> None:
        """Before a batch: a little if nobody asks for more, else as much as is asked for, within a time."""
        if self._failure is not None or self._unavailable is not None:
            return
        if not self._log.is_local and self._graph.seq >= min_seq:
            return  # the background asks it every few milliseconds, and no batch waits for a network
        started = time.monotonic()
        while self._try_to_read_on():
            passed = time.monotonic() - started
            if passed > (_BATCH_BUDGET_S if self._graph.seq >= min_seq else self._max_wait_s):
                return

    def _try_to_read_on(self) -> bool:
        """Read on; what fails is kept for those who ask, and the graph stays as it is."""
        try:
            found = self._read_on(self._graph)
        except LogUnavailable as error:
            if self._unavailable is None:
                _log.warning("answers go on without what is new in the log: %s", error)
            self._unavailable = str(error)
            return False
        except (LogGap, LogCorrupt) as error:
            if self._failure is None:
                _log.error("the graph cannot follow its log: %s", error)
            self._failure = str(error)
            return False
        self._unavailable = None
        return found

    def _run(self) -> None:
        next_check = 0.0
        while not self._stopping.wait(_POLL_S if self._unavailable is None else _RETRY_S):
            try:
                self._follow_in_background()
                if time.monotonic() >= next_check:
                    next_check = time.monotonic() + _MOVE_CHECK_S
                    self._log.hold(self._reader, self._graph.seq)
                    self._move_on()
            except HopserveError as error:
                _log.warning("%s", error)
            except Exception:  # noqa: BLE001 - answers go on from the graph as it is
                _log.exception("following the log failed; trying again")

    def _follow_in_background(self) -> None:
        # Without the lock first: whether there is anything new may take a while to be known.
        while self._failure is None and self._is_behind() and not self._stopping.is_set():
            with self._lock:
                if not self._try_to_read_on():
                    return
            time.sleep(_BETWEEN_CHUNKS_S)

    def _is_behind(self) -> bool:
        try:
            behind = self._log.last_seq() != self._graph.seq
        except LogUnavailable as error:
            self._unavailable = str(error)
            return False
        self._unavailable = None
        return behind

    def _move_on(self) -> None:
        """Let the current snapshot take the place of an older one, between two readings."""
        if self._home.current_seq <= self._held.snapshot.seq:
            return
        held = open_held(self._home.folder)
        try:
            graph = self._caught_up(held)
            view = self._make(graph)
            with self._lock:
                while graph.seq < self._graph.seq or self._failure is not None:
                    if not self._read_on(graph):
                        break
                old, self._held = self._held, held
                self._graph, self._view, self._failure = graph, view, None
        except BaseException:
            held.close()
            raise
        old.close()
        _log.info("moved on to the snapshot of mutation %d", held.snapshot.seq)


def follow(
    folder: Path, make: Callable[[LiveGraph], _View], sampling: Sampling | None = None, **options: Any
) -> Follower[_View]:
    """Follow the graph in a folder.

    Args:
        options: of `Follower`.

    Raises:
        SnapshotError: it cannot be opened, or is a bare snapshot, which has no log.
        LogError: its log cannot be read.
    """
    held = open_held(folder)
    if held.home is None:
        held.close()
        raise SnapshotError(
            folder, "is a bare snapshot, which cannot change; `hopserve graph build` makes others"
        )
    return _follow(held, held.home, make, sampling, **options)


def open_source(folder: Path, **options: Any) -> Source:
    """The graph in a folder: one that follows its log, or a bare snapshot that does not change.

    Args:
        options: of `Follower`.
    """

    def views(sampling: Sampling, make: Callable[[LiveGraph], _View]) -> Views[_View]:
        held = open_held(folder)
        if held.home is None:
            return StaticViews(LiveGraph(held.snapshot, sampling), make, held)
        return _follow(held, held.home, make, sampling, **options)

    return views


def _follow(
    held: HeldSnapshot,
    home: GraphHome,
    make: Callable[[LiveGraph], _View],
    sampling: Sampling | None,
    **options: Any,
) -> Follower[_View]:
    with ExitStack() as undo:
        undo.callback(held.close)
        log = open_log(home.log, home.log_folder, home.graph_id)
        undo.callback(log.close)
        follower = Follower(held, log, sampling, make, owns_log=True, **options)
        undo.pop_all()
    return follower
