"""The cache of outputs in LMDB: a folder on a local disk, for the processes of one host."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from handler.cache.outputs import Outputs
from handler.cache.protocol import Found, OnFailure, ignore_failure
from handler.cache.shelf import Row, Shelf, open_folder
from handler.cache.touches import Touches
from handler.cache.value import Values
from handler.cache.writing import Put, WriteBehind, now_us
from handler.errors import LogCorrupt, LogError

_logger = logging.getLogger(__name__)

_TOUCH_WITHIN_S = 1.0


class LmdbCache:
    """A cache in a folder of one model, which its workers share; what was not used for longest goes first.

    The folder must be on a local file system. What the cache promises is in `handler.cache.protocol`. A crash
    loses what was not written yet, and damages nothing.
    """

    def __init__(self, shelf: Shelf, values: Values, on_failure: OnFailure, touch_s: float) -> None:
        self._shelf, self._values, self._on_failure = shelf, values, on_failure
        self._touches = Touches(touch_s)
        # Held while the shelf is read, so that it is not closed meanwhile.
        self._reading = threading.Lock()
        self._closed = self._discarded = False
        self._writer = WriteBehind(self._write, on_failure, idle_s=_TOUCH_WITHIN_S)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        version: str,
        tag: int,
        dim: int,
        max_bytes: int,
        on_failure: OnFailure = ignore_failure,
        touch_s: float = 30.0,
    ) -> Self:
        """Open a cache, which is made if there is none, and begun anew if it is damaged or too large.

        Args:
            version, tag, dim: see `handler.cache.value.Values`.
            max_bytes: what its file may take.
            touch_s: how long a value that was used is not marked as used again by this process.

        Raises:
            LogUnavailable: the folder cannot be used.
        """
        shelf = Shelf(open_folder(folder, max_bytes), max_bytes)
        return cls(shelf, Values(version, tag, dim), on_failure, touch_s)

    def get(self, node_ids: Sequence[int | str]) -> Found:
        if self._closed:
            return self._values.nothing()
        keys = self._values.keys(node_ids)
        try:
            with self._reading:
                values = self._shelf.read(keys) if not self._closed else [None] * len(keys)
        except LogError as error:
            self._fail(error)
            return self._values.nothing()
        unpacked = self._values.unpack(keys, values)
        for _ in range(unpacked.num_corrupt):
            self._on_failure("corrupt")
        self._touches.note({keys[place] for place in unpacked.found.place.tolist()})
        return unpacked.found

    def put(self, node_ids: Sequence[int | str], outputs: Outputs) -> None:
        self._writer.put(Put(node_ids, outputs))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # A thread that does not end still needs what it writes to.
        if self._writer.close():
            with self._reading:
                self._shelf.close()

    def _write(self, puts: list[Put]) -> None:
        touched = self._touches.take()
        rows = [Row(key, None, used_us) for key, used_us in touched.items()]
        used_us = now_us()
        for put in puts:
            keys = self._values.keys(put.node_ids)
            values = self._values.pack(keys, put.outputs)
            rows += [Row(key, value, used_us) for key, value in zip(keys, values, strict=True)]
        try:
            num_dropped = self._shelf.write(rows) if rows else 0
        except LogError as error:
            self._fail(error)
            return
        for _ in range(num_dropped):
            self._on_failure("full")

    def _fail(self, error: LogError) -> None:
        if not isinstance(error, LogCorrupt):
            self._on_failure("unavailable")
            return
        self._on_failure("corrupt")
        if not self._discarded:
            self._discarded = True
            _logger.warning("the cache is damaged, and begun anew by who opens it next: %s", error)
            with suppress(LogError):
                self._shelf.discard()
