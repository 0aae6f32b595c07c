"""`hopserve graph build`: from files to a graph."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from archive.datasets import DATASETS, load_digits, load_npz, load_planetoid
from handler.errors import GraphInputError
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeFields
from handler.graph.home import write_home
from handler.graph.ordering import STRATEGIES, Ordering, Strategy
from handler.graph.progress import Progress
from handler.graph.rules import Duplicates, EdgeRules
from handler.graph.staging import check_target
from handler.graph.writer import BuildPlan, BuildReport, check_plan
from scripts.cli.options import ANY_PATH, Age, Bars, Names, column_delimiter, say

SOURCES = ("edges", "npz", "pyg", "network", "dataset")


@dataclass(frozen=True)
class BuildOptions:
    """What `hopserve graph build` was asked for; the options' help says what each one is."""

    edges: Path | None
    nodes: Path | None
    npz: Path | None
    pyg: Path | None
    network: Path | None
    dataset: str | None
    source: str | None
    target: str | None
    weight: str | None
    time: str | None
    edge_features: tuple[str, ...]
    node_id: str | None
    features: tuple[str, ...]
    label: str | None
    split: str | None
    delimiter: str | None
    header: bool | None
    ids: Literal["auto", "int", "str"]
    skip_bad: bool
    feature_dtype: Literal["float32", "float16"]
    out: Path
    name: str | None
    force: bool
    ordering: Strategy
    also_order: tuple[Strategy, ...]
    seed: int
    undirected: bool
    duplicates: Duplicates
    self_loops: Literal["keep", "drop"]
    max_edge_age: float | None
    log: str | None
    download_to: Path


def _download_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hopserve" / "datasets"


_FEATURES_HELP = "Comma-separated columns or patterns, such as f* or age,f*."
_STRATEGY = click.Choice(STRATEGIES)


@click.command("build")
@click.option(
    "--edges", type=ANY_PATH, help="Edge table: CSV, TSV or other text (.gz, .bz2, .zst too), or Parquet."
)
@click.option(
    "--nodes",
    type=ANY_PATH,
    help="Node table beside --edges, of the same kinds; else nodes are those that edges name.",
)
@click.option(
    "--npz",
    type=ANY_PATH,
    help="A .npz file of arrays: edge_index [2, num_edges] and, as wished, edge_weight, edge_time,"
    " edge_attr, x or x_data/x_indices/x_indptr/x_shape, y, class_names, node_id,"
    " train_mask/val_mask/test_mask.",
)
@click.option("--pyg", type=ANY_PATH, help="A PyG Data that torch.save wrote; nothing in it is run.")
@click.option(
    "--network", type=ANY_PATH, help="A file that NetworkX reads: .graphml, .gexf or .edgelist (.gz too)."
)
@click.option(
    "--dataset",
    type=click.Choice(DATASETS),
    help="`digits` comes with scikit-learn; the others are downloaded.",
)
@click.option("--source", help="Column of the node an edge comes from.  [default: source, else the first]")
@click.option(
    "--target",
    help="Column of the node it points to, which is computed from the sources."
    "  [default: target, else the second]",
)
@click.option("--weight", help="Column of edge weights (an array of a .npz file).")
@click.option("--time", help="Column of edge times: numbers, or ISO 8601 (an array of a .npz file).")
@click.option("--edge-features", type=Names(), default=(), help=f"Of edges. {_FEATURES_HELP}")
@click.option("--node-id", help="Column of node ids in --nodes.  [default: node_id or id, else the first]")
@click.option("--features", type=Names(), default=(), help=f"Of nodes. {_FEATURES_HELP}")
@click.option("--label", help="Column of classes in --nodes; empty where unknown.")
@click.option("--split", help="Column of train, val, test or nothing in --nodes.")
@click.option(
    "--delimiter", help="Between columns.  [default: by the file's name, else what the first line shows]"
)
@click.option(
    "--header/--no-header",
    default=None,
    help="Whether the first line names the columns.  [default: unless it has numbers only]",
)
@click.option(
    "--ids",
    type=click.Choice(["auto", "int", "str"]),
    default="auto",
    show_default=True,
    help="Type of the node ids in tables.",
)
@click.option("--skip-bad", is_flag=True, help="Count bad rows and skip them, instead of refusing the first.")
@click.option(
    "--feature-dtype",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="How tables' features are stored.",
)
@click.option("--out", type=ANY_PATH, required=True, help="Folder of the new graph.")
@click.option("--name", help="What the graph is called.  [default: the file's name]")
@click.option("--force", is_flag=True, help="Replace a graph that is there, unless it is being served.")
@click.option(
    "--ordering",
    type=_STRATEGY,
    default="seeded",
    show_default=True,
    help="By which neighbors lie; a sample is the first of them.",
)
@click.option(
    "--also-order",
    type=_STRATEGY,
    multiple=True,
    help="By which they can be read as well; may be given several times.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Another seed gives other samples.",
)
@click.option("--undirected", is_flag=True, help="Let every edge count in both directions.")
@click.option(
    "--duplicates",
    type=click.Choice(["drop", "sum", "keep"]),
    default="drop",
    show_default=True,
    help="Of edges with the same ends: keep the latest, add their weights (or count them), or keep all.",
)
@click.option(
    "--self-loops",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="Edges from a node to itself.",
)
@click.option(
    "--max-edge-age",
    type=Age(),
    help="Leave edges out of samples once they are older than this: a number in the unit of the edge times,"
    " or 12h, 30d and so on where these are seconds.",
)
@click.option(
    "--log",
    help="Where later changes are kept: redis://HOST:PORT/N, or env:NAME of a variable that says so, where"
    " several hosts serve the graph."
    "  [default: beside the snapshot]",
)
@click.option(
    "--download-to",
    type=ANY_PATH,
    default=_download_folder,
    help="Where downloads are kept.  [default: ~/.cache/hopserve/datasets]",
)
def build_command(**given: Any) -> None:
    """Build a graph from a file or a known dataset.

    Nothing is left behind when it fails, and an older graph stays as it was.
    """
    options = BuildOptions(**given)
    chosen = [name for name in SOURCES if getattr(options, name) is not None]
    if len(chosen) != 1:
        raise click.UsageError("give exactly one of " + ", ".join(f"--{name}" for name in SOURCES))
    if options.nodes is not None and options.edges is None:
        raise click.UsageError("--nodes goes with --edges")
    _refuse_unused(options, chosen[0])
    check_target(options.out, replace=options.force)
    rules = EdgeRules(
        options.undirected, options.duplicates, options.self_loops == "keep", options.max_edge_age
    )
    extra = tuple(Ordering(strategy, options.seed) for strategy in options.also_order)
    plan = BuildPlan(Ordering(options.ordering, options.seed), extra, rules)
    if options.edges is not None:  # before a long reading
        check_plan(plan, EdgeFields(options.weight is not None, options.time is not None))
    progress = Bars()
    with _read(options, progress) as (graph, undirected):
        plan = replace(plan, rules=msgspec.structs.replace(rules, undirected=undirected))
        named = replace(graph, name=options.name or graph.name)
        report = write_home(
            options.out, named, plan, log=options.log, replace=options.force, progress=progress
        )
    click.echo(_summary(options.out, report))


# Which sources take which columns; all others are fixed by the source.
_TAKEN = {
    "source": {"edges"},
    "target": {"edges"},
    "weight": {"edges", "network", "npz"},
    "time": {"edges", "network", "npz"},
    "edge_features": {"edges", "network", "npz"},
    "node_id": {"edges"},
    "features": {"edges", "network"},
    "label": {"edges", "network"},
    "split": {"edges", "network"},
    "delimiter": {"edges"},
    "header": {"edges"},
    "skip_bad": {"edges"},
}
_OF_NODES = ("node_id", "features", "label", "split")


def _refuse_unused(options: BuildOptions, source: str) -> None:
    for option, sources in _TAKEN.items():
        if getattr(options, option) in {None, (), False}:
            continue
        shown = f"--{option.replace('_', '-')}"
        if source not in sources:
            raise click.UsageError(f"{shown} does not go with --{source}")
        if option in _OF_NODES and source == "edges" and options.nodes is None:
            raise click.UsageError(f"{shown} needs --nodes")


@contextmanager
def _read(options: BuildOptions, progress: Progress) -> Iterator[tuple[GraphArrays, bool]]:
    """The graph, and whether its edges count both ways."""
    undirected = options.undirected
    if options.edges is not None:
        with _read_tables(options, progress) as graph:
            yield graph, undirected
        return
    progress.say(f"reading {options.npz or options.pyg or options.network or options.dataset}")
    if options.npz is not None:
        edge_columns = {"weight": options.weight, "time": options.time}
        yield load_npz(options.npz, **edge_columns, edge_features=options.edge_features), undirected
    elif options.pyg is not None:
        from archive.pyg_data import load_pyg_data

        yield load_pyg_data(options.pyg), undirected
    elif options.network is not None:
        from archive.networks import load_network

        network = load_network(
            options.network,
            weight=options.weight,
            time=options.time,
            edge_features=options.edge_features,
            features=options.features,
            label=options.label,
            split=options.split,
        )
        yield network.graph, undirected or network.undirected
    elif options.dataset == "digits":
        yield load_digits(), undirected
    else:
        yield load_planetoid(str(options.dataset), options.download_to), undirected


@contextmanager
def _read_tables(options: BuildOptions, progress: Progress) -> Iterator[GraphArrays]:
    import pyarrow as pa

    from archive.tables.edges import EdgeTable
    from archive.tables.format import TableFormat
    from archive.tables.graph import read_table_graph
    from archive.tables.nodes import NodeTable

    pa.enable_signal_handlers(False)  # pyarrow can swallow an interrupt; Python's own handler does not
    layout = TableFormat(column_delimiter(options.delimiter), options.header)
    assert options.edges is not None  # noqa: S101
    edges = EdgeTable(
        options.edges,
        layout,
        options.source,
        options.target,
        options.weight,
        options.time,
        options.edge_features,
    )
    nodes = None
    if options.nodes is not None:
        nodes = NodeTable(
            options.nodes, layout, options.node_id, options.features, options.label, options.split
        )
    with _work_folder(options.out) as work:
        graph = read_table_graph(
            options.edges.name.partition(".")[0],
            edges,
            nodes,
            id_type=options.ids,
            skip_bad=options.skip_bad,
            feature_dtype=options.feature_dtype,
            work=work,
            progress=progress,
        )
        try:
            for table in graph.reports:
                if table.num_skipped:
                    say(f"{table.path}: skipped {table.num_skipped} bad of {table.num_rows} rows, such as")
                    for message in table.messages:
                        say(f"  {message}")
            if graph.id_note:
                say(graph.id_note)
            yield graph.to_arrays()
        finally:
            graph.close()


@contextmanager
def _work_folder(out: Path) -> Iterator[Path]:
    """A folder on the disk of the graph, for what does not fit into memory."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-import-", dir=out.parent) as work:
            yield Path(work)
    except OSError as error:
        raise GraphInputError(f"{out}: cannot be written: {error.strerror}") from None


def _summary(out: Path, report: BuildReport) -> str:
    edges = report.edges
    parts = [f"{out}: {report.num_nodes} nodes, {edges.num_edges} edges"]
    notes = []
    if edges.num_duplicates:
        notes.append(f"without {edges.num_duplicates} repeats")
    if edges.num_self_loops_dropped:
        notes.append(f"without {edges.num_self_loops_dropped} self-loops")
    if notes:
        parts.append(f" ({', '.join(notes)})")
    if report.num_without_features:
        shown = ", ".join(repr(node_id) for node_id in report.without_features)
        more = ", ..." if report.num_without_features > len(report.without_features) else ""
        parts.append(f"\n{report.num_without_features} nodes have only zeros as features: {shown}{more}")
    return "".join(parts)
