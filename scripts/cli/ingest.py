"""`hopserve ingest`: a file of mutations to the live graph."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import click
import xxhash

from archive.ingest.batches import Limits
from archive.ingest.files import Format, MutationFormat, format_of, open_mutations
from archive.ingest.journal import Journal, open_journal, unrepeatable_journal
from archive.ingest.pipe import PipedText
from archive.ingest.rows import Kind
from archive.ingest.shape import GraphShape
from archive.ingest.tables import Columns
from archive.tables.bad_rows import BadRows
from archive.tables.format import TableFormat
from gateway.errors import UpstreamError
from gateway.upstream.client import Client
from gateway.upstream.mutations import ENVELOPE_BYTES, GRAPH_MODEL, LiveGraph, Mutations
from gateway.upstream.properties import ServerProperties
from handler.errors import GraphInputError
from scripts.cli.build import build_command
from scripts.cli.ingest_run import Ingest
from scripts.cli.options import ANY_PATH, Names, column_delimiter, say, with_server

_MAX_MUTATIONS = 100_000
_STDIN = 0
_KINDS: dict[str, Kind] = {
    "edges": "add_edges",
    "nodes": "add_nodes",
    "features": "set_features",
    "removals": "remove_edges",
}
# Which rows take which columns.
_TAKEN = {
    "source": {"edges", "removals"},
    "target": {"edges", "removals"},
    "weight": {"edges"},
    "time": {"edges", "removals"},
    "edge_features": {"edges"},
    "node_id": {"nodes", "features"},
    "features": {"nodes", "features"},
}
_OF_BUILD = {parameter.name: parameter for parameter in build_command.params}


@dataclass(frozen=True)
class IngestOptions:
    """What `hopserve ingest` was asked for; the options' help says what each one is."""

    file: Path
    format: Format | None
    kind: Literal["edges", "nodes", "features", "removals"]
    source: str | None
    target: str | None
    weight: str | None
    time: str | None
    edge_features: tuple[str, ...]
    node_id: str | None
    features: tuple[str, ...]
    delimiter: str | None
    header: bool | None
    ids: Literal["auto", "int", "str"]
    skip_bad: bool
    create_missing: bool
    batch_size: int
    connections: int
    retry_for_s: float
    model: str
    state: Path | None
    restart: bool


@click.command(
    "ingest",
    params=[
        _OF_BUILD[name] for name in ("source", "target", "edge_features", "delimiter", "header", "skip_bad")
    ],
)
@click.argument("file", type=ANY_PATH, metavar="FILE|-")
@click.option(
    "--format",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    help="Of the file; csv is any table of text.  [default: by its name; csv from a pipe]",
)
@click.option(
    "--kind",
    type=click.Choice(list(_KINDS)),
    default="edges",
    show_default=True,
    help="What a row is: an edge to add, a node to add, features to set, or an edge to remove.",
)
@click.option("--weight", help="Column of edge weights.  [default: weight, if the graph's edges have them]")
@click.option(
    "--time",
    help="Column of edge times: numbers, or ISO 8601.  [default: time, if the graph's edges have them; for"
    " removals none, and all edges between two nodes go]",
)
@click.option("--node-id", help="Column of node ids.  [default: node_id or id, else the first]")
@click.option(
    "--features", type=Names(), default=(), help="Of nodes. Comma-separated columns or patterns, such as f*."
)
@click.option(
    "--ids",
    type=click.Choice(["auto", "int", "str"]),
    default="auto",
    show_default=True,
    help="Type of the node ids, which must be the graph's.",
)
@click.option("--create-missing", is_flag=True, help="Add the nodes that edges name and the graph lacks.")
@click.option(
    "--batch-size",
    type=click.IntRange(1, _MAX_MUTATIONS),
    default=10_000,
    show_default=True,
    help="Mutations per request, which is all or nothing; fewer where they would be too many bytes.",
)
@click.option(
    "--connections",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Requests at a time. With 1 they go out one after the other, and mutations are applied in the order"
    " of the file; with more, only within a request.",
)
@click.option(
    "--retry-for-s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="How long to try a request again that the server does not answer, or cannot take now.",
)
@click.option("--model", default=GRAPH_MODEL, show_default=True, help="As which the graph is served.")
@click.option(
    "--state",
    type=ANY_PATH,
    help="Where it is kept how far the file has come.  [default: below ~/.cache/hopserve/ingest]",
)
@click.option("--restart", is_flag=True, help="Send the file from its beginning, even if it was sent before.")
@with_server
def ingest_command(properties: ServerProperties, **given: Any) -> None:
    """Send the mutations in FILE to the live graph.

    FILE is a table (CSV, TSV or other text, .gz, .bz2 and .zst too, or Parquet) with a mutation per row, or
    JSON lines (.jsonl, .ndjson), each an object with one mutation or with a request's lists of them; or - for
    standard input, which is sent as it comes.

    Run again on the same file, or one with more at its end, it goes on where it ended. A request that is
    sent twice is applied once.
    """
    import pyarrow as pa

    pa.enable_signal_handlers(False)  # pyarrow can swallow an interrupt; Python's own handler does not
    options = IngestOptions(**given)
    is_file = options.file.is_file()
    if not is_file and (options.restart or options.state is not None):
        raise click.UsageError("--state and --restart need a file, which can be read again")
    file_format = options.format or (format_of(options.file) if is_file else "csv")
    _refuse_unused(options, file_format)
    with Client(properties) as client, _opened(options.file, file_format) as source:
        mutations = Mutations(client, options.retry_for_s, say, options.model)
        graph = mutations.describe()
        if options.ids not in {"auto", graph.id_type}:
            raise UpstreamError(f"--ids {options.ids}: the graph's node ids are {graph.id_type}")
        bad_rows = BadRows(source if isinstance(source, Path) else source.path, options.skip_bad)
        layout = TableFormat(column_delimiter(options.delimiter), options.header)
        given_format = MutationFormat(file_format, _KINDS[options.kind], _columns(options), layout)
        file = open_mutations(source, given_format, _shape(graph), bad_rows)
        served = f"{properties.inference_url}/predictions/{options.model}"
        journal = _journal(options, file_format, served, graph)
        limits = Limits(options.batch_size, properties.max_request_bytes - ENVELOPE_BYTES)
        ingest = Ingest(bad_rows.path, mutations, journal, create_missing=options.create_missing)
        ingest.run(file, limits, options.connections, at_once=isinstance(source, PipedText))
    for message in _skipped(bad_rows):
        say(message)
    click.echo(ingest.summary())


def _refuse_unused(options: IngestOptions, file_format: Format) -> None:
    for option, kinds in _TAKEN.items():
        if getattr(options, option) not in {None, ()}:
            shown = f"--{option.replace('_', '-')}"
            if file_format == "jsonl":
                raise click.UsageError(f"{shown} does not go with JSON lines, which name their values")
            if options.kind not in kinds:
                raise click.UsageError(f"{shown} does not go with --kind {options.kind}")
    if file_format != "csv" and (options.delimiter is not None or options.header is not None):
        raise click.UsageError("--delimiter and --header go with tables of text")


@contextmanager
def _opened(file: Path, file_format: Format) -> Iterator[Path | PipedText]:
    """What is read: a file, or what comes through a pipe."""
    is_stdin = str(file) == "-"
    if file.is_dir() or not (is_stdin or file.exists()):
        raise GraphInputError(f"{file}: {'is a folder' if file.is_dir() else 'no such file'}")
    if file.is_file():
        yield file
    elif file_format == "parquet":  # ends with what says where everything is
        with tempfile.NamedTemporaryFile(suffix=".parquet") as copy:
            with open(_STDIN if is_stdin else file, "rb", closefd=not is_stdin) as piped:
                shutil.copyfileobj(piped, copy)
            copy.flush()
            yield Path(copy.name)
    elif is_stdin:
        yield PipedText(Path("stdin"), _STDIN)
    else:
        with file.open("rb", buffering=0) as piped:
            yield PipedText(file, piped.fileno())


def _journal(options: IngestOptions, file_format: Format, server: str, graph: LiveGraph) -> Journal:
    file = options.file
    if not file.is_file():
        return unrepeatable_journal(str(file), server)
    path = options.state or _state_path(file, options.kind, server)
    content = _given(options, *_TAKEN, "delimiter", "header") | {"kind": options.kind, "format": file_format}
    journal = open_journal(path, file, server, content, restart=options.restart)
    state = journal.state
    if state.last_seq > graph.last_seq:
        raise GraphInputError(
            f"{file}: was sent up to seq {state.last_seq}, but {server} is at seq {graph.last_seq}: it must"
            " have another graph now, to which --restart sends all of the file"
        )
    if journal.replaces:
        say(f"{file}: is another file than was sent from there before, so it begins anew")
    elif state.sent:
        how_far = f"after line {state.last_line}, with {state.num_mutations} mutations acknowledged"
        say(f"{file}: going on {how_far}")
    return journal


def _state_path(file: Path, kind: str, server: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = xxhash.xxh3_64_hexdigest("\0".join([str(file.resolve()), kind, server]).encode())
    return cache / "hopserve" / "ingest" / f"{file.name[:100]}-{name}.json"


def _given(options: IngestOptions, *names: str) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in names}
    return {
        name: ",".join(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value not in {None, ()}
    }


def _columns(options: IngestOptions) -> Columns:
    return Columns(**{column.name: getattr(options, column.name) for column in fields(Columns)})


def _shape(graph: LiveGraph) -> GraphShape:
    edge = graph.edge
    return GraphShape(graph.id_type, graph.feature_dim or 0, edge.weight, edge.time, edge.attr_dim)


def _skipped(bad_rows: BadRows) -> list[str]:
    report = bad_rows.report()
    if not report.num_skipped:
        return []
    first = f"{report.path}: skipped {report.num_skipped} bad of {report.num_rows} rows, such as"
    return [first, *(f"  {message}" for message in report.messages)]
