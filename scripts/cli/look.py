"""`hopserve graph info`, `verify`, `add-ordering` and `sample`: what there is to do with a snapshot."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from numpy.typing import NDArray

from archive.degrees import count_degrees
from archive.picture_files import check_picture_path
from archive.pictures import draw_degrees, draw_sample
from handler.errors import GraphInputError, LogError, OverBudget, UnknownNode
from handler.graph.arrays import Split
from handler.graph.fanout import FanoutPlan
from handler.graph.home import GraphHome, open_held
from handler.graph.ids import NodeIds
from handler.graph.ordering import STRATEGIES, Ordering, Strategy
from handler.graph.sampler import SampledTrees, Sampler, TreeLimits
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot, verify
from handler.graph.writer import add_ordering
from handler.log.embedded import LmdbLog
from handler.log.opening import open_log
from handler.log.protocol import Log
from scripts.cli.options import ANY_PATH, EXISTING_FOLDER, Bars, Fanouts, say, show_json

_SAMPLING = Sampling()
_POSITIVE = click.IntRange(min=1)
_SEED = click.IntRange(0, 2**63 - 1)
_LIMITS = TreeLimits(max_nodes=1 << 20, max_edges=1 << 20)  # nobody looks at more
_BLOCK_EDGES = 1 << 22
_INT64 = np.iinfo(np.int64)


@click.command("info")
@click.argument("folder", type=EXISTING_FOLDER)
@click.option(
    "--plot",
    type=ANY_PATH,
    help="Also draw how many nodes have how many in-neighbors, to this .png or .html file.",
)
def info_command(folder: Path, plot: Path | None) -> None:
    """Show what a snapshot holds, as JSON."""
    if plot is not None:
        check_picture_path(plot)
    with open_held(folder) as held:
        snapshot, home = held.snapshot, held.home
        size_bytes = sum(file.stat().st_size for file in snapshot.folder.iterdir())
    manifest = snapshot.manifest
    degrees = count_degrees(snapshot.adjacency)
    some_nodes = np.arange(min(3, snapshot.num_nodes))
    own, *extra = ({"strategy": each.strategy, "seed": each.seed} for each in manifest.orderings().values())
    info: dict[str, object] = {
        "name": manifest.name,
        "graph_id": None if home is None else home.graph_id,
        "folder": str(snapshot.folder),
        "snapshot": manifest.snapshot_id,
        "seq": manifest.seq,
        "num_nodes": snapshot.num_nodes,
        "num_edges": snapshot.num_edges,
        "ids": {"kind": manifest.id_kind, "first": snapshot.ids.id_of(some_nodes)},
        "in_degree": {
            "max": degrees.quantile(1),
            "p99": degrees.quantile(0.99),
            "median": degrees.quantile(0.5),
            "isolated": degrees.isolated,
        },
        "ordering": own,
        "extra_orderings": extra,
        "rules": msgspec.structs.asdict(manifest.rules),
        "edges": _edge_info(snapshot),
        **_node_info(snapshot),
        "size_bytes": size_bytes,
        "log": None if home is None else _log_info(home, manifest.seq),
    }
    if plot is not None:
        draw_degrees(degrees, plot, manifest.name)
        say(f"drew {plot}")
    show_json(info)


@click.command("verify")
@click.argument("folder", type=EXISTING_FOLDER)
def verify_command(folder: Path) -> None:
    """Check every byte of a snapshot against its checksums, and that its edges and ids are possible."""
    snapshot = verify(folder, progress=Bars())
    click.echo(f"{folder}: intact: {snapshot.num_nodes} nodes, {snapshot.num_edges} edges")


@click.command("add-ordering")
@click.argument("folder", type=EXISTING_FOLDER)
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    required=True,
    help="What orders neighbors: `weighted` and `top_weight` need edge weights, `recent` needs times.",
)
@click.option("--seed", type=_SEED, default=0, show_default=True, help="Another seed gives other samples.")
def add_ordering_command(folder: Path, strategy: Strategy, seed: int) -> None:
    """Let a snapshot be sampled by one more strategy, without building it anew.

    It takes 4 bytes per edge. Workers that have the snapshot open keep what they have.
    """
    manifest = add_ordering(folder, Ordering(strategy, seed), progress=Bars())
    click.echo(f"{folder}: is now sampled by {', '.join(manifest.orderings())}")


@click.command("sample")
@click.argument("folder", type=EXISTING_FOLDER)
@click.argument("node")
@click.option(
    "--num-neighbors",
    type=Fanouts(),
    default="10,10",
    show_default=True,
    help="Neighbors sampled per hop, from the seed outwards. A hop takes as many as any later one, as a"
    " model's earlier layers need them.",
)
@click.option(
    "--sampling",
    "strategy",
    type=click.Choice([*STRATEGIES, "walk", "random"]),
    help="A strategy that the snapshot stores, or one that is computed.  [default: the snapshot's own]",
)
@click.option(
    "--num-walks", type=_POSITIVE, default=_SAMPLING.num_walks, show_default=True, help="Of `walk`."
)
@click.option(
    "--walk-length", type=_POSITIVE, default=_SAMPLING.walk_length, show_default=True, help="Of `walk`."
)
@click.option("--seed", type=_SEED, default=_SAMPLING.seed, show_default=True, help="Of `walk` and `random`.")
@click.option("--as-of", type=float, help="Use no edge that is later; of `recent`.")
@click.option("--plot", type=ANY_PATH, help="Also draw the sample, to this .png or .html file.")
def sample_command(
    folder: Path,
    node: str,
    num_neighbors: tuple[int, ...],
    strategy: Any,
    num_walks: int,
    walk_length: int,
    seed: int,
    as_of: float | None,
    plot: Path | None,
) -> None:
    """Show which neighbors a model would be given for NODE, hop by hop, as JSON.

    A negative node id goes behind two dashes: sample FOLDER -- -7
    """
    if plot is not None:
        check_picture_path(plot)
    snapshot = Snapshot.open(folder)
    sampling = Sampling(strategy=strategy, seed=seed, num_walks=num_walks, walk_length=walk_length)
    sampler = snapshot.sampler(sampling)
    if as_of is not None and not (sampler.knows_time and np.isfinite(as_of)):
        raise click.UsageError("--as-of needs a time, and neighbors that come by time: --sampling recent")
    # More than the limit would be refused anyway, and must fit 64 bits.
    plan = FanoutPlan.of(tuple(min(fanout, _LIMITS.max_nodes) for fanout in reversed(num_neighbors)))
    index = _index_of(folder, snapshot.ids, node)
    trees = sampler.trees(index, plan, None if as_of is None else np.array([as_of]), _LIMITS)
    if not trees.num_seeds:
        raise OverBudget(_LIMITS.max_nodes, _LIMITS.max_edges)
    shown_strategy = strategy or snapshot.manifest.ordering.strategy
    if plot is not None:
        draw_sample(snapshot, trees, plot, f"node {node} of {snapshot.manifest.name} by {shown_strategy}")
        say(f"drew {plot}")
    show_json(
        {
            "node": snapshot.ids.id_of(index)[0],
            "sampling": shown_strategy,
            "num_neighbors": list(plan.hop_fanouts),
            "num_nodes": len(trees.node),
            "num_edges": trees.num_edges,
            "hops": _hops(snapshot.ids, trees, plan.num_hops),
            "edges": _edges(snapshot, sampler, trees),
        }
    )


def _log_info(home: GraphHome, seq: int) -> dict[str, object]:
    """Where the log begins and ends, and how many of its mutations the snapshot lacks."""
    if home.log is None and not home.log_folder.exists():
        return {"first_seq": seq + 1, "last_seq": seq, "lag": 0}
    try:
        with closing(_open_log_to_read(home)) as log:
            first_seq, last_seq = log.first_seq(), log.last_seq()
    except LogError as error:
        return {"problem": str(error)}
    return {"first_seq": first_seq, "last_seq": last_seq, "lag": last_seq - seq}


def _open_log_to_read(home: GraphHome) -> Log:
    if home.log is None:
        return LmdbLog.open(home.log_folder, home.graph_id, writable=False)
    return open_log(home.log, home.log_folder, home.graph_id)


def _edge_info(snapshot: Snapshot) -> dict[str, object]:
    adjacency = snapshot.adjacency
    attr = adjacency.edge_attr
    return {
        "weight": _range(adjacency.edge_weight),
        "time": _range(adjacency.edge_time),
        "features": None if attr is None else {"dimension": attr.shape[1], "dtype": str(attr.dtype)},
    }


def _range(values: NDArray[np.floating] | None) -> dict[str, float] | None:
    """The least and the largest of values that may be more than memory holds."""
    if values is None or not len(values):
        return None
    blocks = [values[start : start + _BLOCK_EDGES] for start in range(0, len(values), _BLOCK_EDGES)]
    lowest, highest = min(block.min() for block in blocks), max(block.max() for block in blocks)
    return {"min": _shortest(lowest), "max": _shortest(highest)}


def _node_info(snapshot: Snapshot) -> dict[str, object]:
    manifest = snapshot.manifest
    info: dict[str, object] = {"features": None, "classes": None}
    if snapshot.features is not None:
        info["features"] = {"kind": manifest.feature_kind, "dimension": manifest.feature_dim}
    if snapshot.label is not None and manifest.label_names is not None:
        known = snapshot.label[snapshot.label >= 0]
        counts = np.bincount(known, minlength=len(manifest.label_names)).tolist()
        info["classes"] = dict(zip(manifest.label_names, counts, strict=True))
    if snapshot.split is not None:
        info["split"] = {part.name.lower(): int((snapshot.split == part).sum()) for part in Split}
    return info


def _index_of(folder: Path, ids: NodeIds, text: str) -> NDArray[np.int64]:
    """int64 [1]: the node that the user names."""
    node_id: int | str = text
    if ids.id_type is int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise GraphInputError(f"{folder}: its node ids are integers, not {text!r}")
        node_id = int(text)
        if not _INT64.min <= node_id <= _INT64.max:
            raise UnknownNode(node_id)
    index = ids.index_of([node_id])
    if index[0] < 0:
        raise UnknownNode(node_id)
    return index


def _hops(ids: NodeIds, trees: SampledTrees, num_hops: int) -> list[list[int | str]]:
    """The ids of the tree's nodes by hop; a node that is met twice stands twice."""
    return [ids.id_of(trees.node[trees.hop == hop]) for hop in range(num_hops + 1)]


def _edges(snapshot: Snapshot, sampler: Sampler, trees: SampledTrees) -> list[dict[str, object]]:
    source, target = (snapshot.ids.id_of(trees.node[ends]) for ends in trees.edge_index)
    columns: dict[str, list[Any]] = {"source": source, "target": target}
    weight, time = sampler.edge_weight(trees), snapshot.adjacency.edge_time
    if weight is not None:
        columns["weight"] = [_shortest(value) for value in weight]
    if time is not None and trees.share is None:  # a walk is no edge
        columns["time"] = time[trees.edge].tolist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _shortest(value: np.floating) -> float:
    """As few digits as tell the value from its neighbours in its own precision."""
    return float(str(value))
