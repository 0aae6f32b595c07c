"""Which kind of file mutations are in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from archive.ingest.json_lines import JsonMutations
from archive.ingest.pipe import PipedText
from archive.ingest.rows import Kind, Segment
from archive.ingest.shape import GraphShape
from archive.ingest.tables import Columns, TableMutations
from archive.tables.bad_rows import BadRows
from archive.tables.files import is_parquet
from archive.tables.format import TableFormat, codec_of
from archive.tables.parquet import ParquetTable
from archive.tables.text import TextTable
from archive.tables.text_file import TextFile
from handler.graph.progress import Progress

Format = Literal["csv", "jsonl", "parquet"]

_BLOCK_BYTES = 1 << 20  # some batches; the next ones are read while these are sent
_JSON_LINES = {".jsonl", ".ndjson"}


@dataclass(frozen=True)
class MutationFormat:
    """What a file's user says of it.

    Args:
        format: of the file.
        kind: what a row does.
        columns: of a table.
        layout: of a table in text.
    """

    format: Format
    kind: Kind
    columns: Columns = field(default_factory=Columns)
    layout: TableFormat = field(default_factory=TableFormat)


class MutationFile(Protocol):
    """A file that is known to have mutations, which are read when they are asked for."""

    def blocks(self, progress: Progress) -> Iterator[list[Segment]]:
        """All of them, in the file's order."""
        ...


def format_of(path: Path) -> Format:
    """What a file is by its name."""
    if is_parquet(path):
        return "parquet"
    plain = path.with_suffix("") if codec_of(path) else path
    return "jsonl" if plain.suffix.lower() in _JSON_LINES else "csv"


def open_mutations(
    source: Path | PipedText, given: MutationFormat, shape: GraphShape, bad_rows: BadRows
) -> MutationFile:
    """The mutations in a file or pipe, for a graph of some shape.

    Raises:
        GraphInputError: it has none, lacks something that the graph needs, or has something that the graph
            has no place for.
    """
    if given.format == "parquet" and isinstance(source, Path):
        return TableMutations(ParquetTable(source), given.kind, given.columns, shape, bad_rows)
    text = TextFile(source, _BLOCK_BYTES) if isinstance(source, Path) else source
    if given.format == "jsonl":
        return JsonMutations(text, given.kind, shape, bad_rows)
    return TableMutations(TextTable(text, given.layout), given.kind, given.columns, shape, bad_rows)
