"""Rows in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from archive.tables.table import Chunk, place_of, reading
from handler.errors import GraphInputError
from handler.graph.progress import Progress

_BATCH_CELLS = 1 << 20


class ParquetTable:
    """A Parquet file, read in batches of about as many values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path), pq.ParquetFile(path) as file:
            self.columns = tuple(file.schema_arrow.names)
        if not self.columns:
            raise GraphInputError(f"{path}: has no columns")

    def chunks(self, columns: Sequence[str], progress: Progress) -> Iterator[Chunk]:
        wanted = list(dict.fromkeys(columns))
        for name in wanted:
            place_of(self, name)
        # With a buffer a row group need not be in memory as a whole.
        with (
            reading(self.path),
            pq.ParquetFile(self.path, buffer_size=1 << 20) as file,
            progress.bar(f"reading {self.path.name}", file.metadata.num_rows, "row") as advance,
        ):
            done = 0
            batch_rows = max(1, _BATCH_CELLS // len(wanted))
            for batch in file.iter_batches(batch_rows, columns=wanted, use_threads=False):
                lines = np.arange(done + 1, done + 1 + batch.num_rows)
                yield Chunk({name: batch[name] for name in wanted}, lines)
                done += batch.num_rows
                advance(batch.num_rows)
