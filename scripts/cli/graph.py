"""`hopserve graph`: makes and shows graph snapshots."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from archive.datasets import DATASETS, load_digits, load_npz, load_planetoid, make_undirected
from handler.graph.snapshot import Snapshot
from handler.graph.writer import Split, write_snapshot
from scripts.cli.options import ANY_PATH, EXISTING_FOLDER, say, show_json


def _download_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hopserve" / "datasets"


@click.group()
def graph() -> None:
    """Make and look at graph snapshots."""


@graph.command("build")
@click.option(
    "--npz",
    type=ANY_PATH,
    help="A .npz file of arrays: edge_index [2, num_edges] and, as wished,"
    " x or x_data/x_indices/x_indptr/x_shape, y, class_names, node_id, train_mask/val_mask/test_mask.",
)
@click.option(
    "--dataset",
    type=click.Choice(DATASETS),
    help="`digits` comes with scikit-learn; the others are downloaded.",
)
@click.option("--out", type=ANY_PATH, required=True, help="Folder of the new snapshot.")
@click.option("--undirected", is_flag=True, help="Let every edge count in both directions.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Another seed gives other samples.",
)
@click.option("--force", is_flag=True, help="Replace a snapshot that is there.")
@click.option(
    "--download-to",
    type=ANY_PATH,
    default=_download_folder,
    help="Where downloads are kept.  [default: ~/.cache/hopserve/datasets]",
)
def build_command(
    npz: Path | None,
    dataset: str | None,
    out: Path,
    undirected: bool,
    seed: int,
    force: bool,
    download_to: Path,
) -> None:
    """Build a snapshot from a file or a known dataset."""
    if (npz is None) == (dataset is None):
        raise click.UsageError("give either --npz or --dataset")
    say(f"reading {npz or dataset}")
    if npz is not None:
        arrays = load_npz(npz)
    elif dataset == "digits":
        arrays = load_digits()
    else:
        arrays = load_planetoid(str(dataset), download_to)
    if undirected:
        arrays = replace(arrays, edge_index=make_undirected(arrays.edge_index))
    report = write_snapshot(out, arrays, seed=seed, replace=force, report=say)
    click.echo(
        f"{out}: {report.num_nodes} nodes, {report.num_edges} edges"
        + (f" (without {report.num_duplicates} repeats)" if report.num_duplicates else "")
    )


@graph.command("info")
@click.argument("folder", type=EXISTING_FOLDER)
def info_command(folder: Path) -> None:
    """Show what a snapshot holds, as JSON."""
    snapshot = Snapshot.open(folder)
    manifest = snapshot.manifest
    degree = np.diff(snapshot.adjacency.indptr)
    info: dict[str, object] = {
        "name": manifest.name,
        "snapshot": manifest.snapshot_id,
        "seq": manifest.seq,
        "num_nodes": manifest.num_nodes,
        "num_edges": manifest.num_edges,
        "ids": {"kind": manifest.id_kind, "first": snapshot.ids.id_of(np.arange(min(3, len(degree))))},
        "in_degree": {
            "max": int(degree.max()),
            "p99": float(np.quantile(degree, 0.99)),
            "median": float(np.median(degree)),
            "isolated": int((degree == 0).sum()),
        },
        "ordering": {"strategy": manifest.ordering.strategy, "seed": manifest.ordering.seed},
        "features": None,
        "classes": None,
        "size_bytes": sum(file.stat().st_size for file in folder.iterdir()),
    }
    if snapshot.features is not None:
        info["features"] = {"kind": manifest.feature_kind, "dimension": manifest.feature_dim}
    if snapshot.label is not None and manifest.label_names is not None:
        known = snapshot.label[snapshot.label >= 0]
        counts = np.bincount(known, minlength=len(manifest.label_names)).tolist()
        info["classes"] = dict(zip(manifest.label_names, counts, strict=True))
    if snapshot.split is not None:
        info["split"] = {part.name.lower(): int((snapshot.split == part).sum()) for part in Split}
    show_json(info)
