"""`hopserve train` and `pack`: from a graph to weights, and from an exported model to an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click
import yaml

from archive.checkpoint import save_checkpoint
from archive.example.train import TrainingPlan, train
from archive.pack import GraphPlan, PackPlan, pack
from handler.graph.ordering import STRATEGIES, Strategy
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.metrics import torchserve_metrics_file
from scripts.cli.options import ANY_PATH, EXISTING_FOLDER, Bars, Fanouts, Setting, say

_PLAN = TrainingPlan()
_SAMPLING = Sampling()
_POSITIVE = click.IntRange(min=1)


@click.command("train")
@click.option("--graph", "graph_folder", type=EXISTING_FOLDER, required=True, help="Snapshot to train on.")
@click.option("--out", type=ANY_PATH, required=True, help="File of the trained weights, such as weights.pt.")
@click.option(
    "--task",
    type=click.Choice(["classification", "embedding"]),
    default=_PLAN.task,
    show_default=True,
    help="`embedding` needs no classes: neighbors become alike.",
)
@click.option(
    "--num-neighbors",
    type=Fanouts(),
    default="10,10",
    show_default=True,
    help="Neighbors sampled per hop, from the seed outwards as in PyG; as many hops as layers.",
)
@click.option(
    "--sampling",
    "strategy",
    type=click.Choice([*STRATEGIES, "walk"]),
    help="Which neighbors, in training and in serving: an ordering that the graph stores, or those that"
    " random walks visit most.  [default: the order in which the graph lies]",
)
@click.option(
    "--num-walks", type=_POSITIVE, default=_SAMPLING.num_walks, show_default=True, help="Of `walk`, per node."
)
@click.option(
    "--walk-length",
    type=_POSITIVE,
    default=_SAMPLING.walk_length,
    show_default=True,
    help="Of `walk`, in steps.",
)
@click.option(
    "--sampling-seed",
    type=click.IntRange(min=0),
    default=_SAMPLING.seed,
    show_default=True,
    help="Of `walk`: another one walks elsewhere.",
)
@click.option(
    "--resample",
    is_flag=True,
    help="Train on other random neighbors in each epoch; serving and measures keep to --sampling.",
)
@click.option(
    "--edge-weight/--no-edge-weight",
    default=None,
    help="Whether neighbors count by weight.  [default: with --sampling walk, by share of visits]",
)
@click.option(
    "--edge-features/--no-edge-features",
    default=_PLAN.edge_features,
    show_default=True,
    help="Whether the model takes the features of edges.",
)
@click.option("--hidden-dim", type=_POSITIVE, default=_PLAN.hidden_dim, show_default=True)
@click.option("--embedding-dim", type=_POSITIVE, default=_PLAN.embedding_dim, show_default=True)
@click.option("--epochs", type=_POSITIVE, default=_PLAN.num_epochs, show_default=True)
@click.option(
    "--batch-size",
    type=_POSITIVE,
    default=_PLAN.batch_size,
    show_default=True,
    help="Nodes, or linked pairs, per step.",
)
@click.option("--learning-rate", type=float, default=_PLAN.learning_rate, show_default=True)
@click.option("--weight-decay", type=float, default=_PLAN.weight_decay, show_default=True)
@click.option("--seed", type=int, default=_PLAN.seed, show_default=True)
def train_command(
    graph_folder: Path,
    out: Path,
    task: str,
    num_neighbors: tuple[int, ...],
    strategy: Strategy | Literal["walk"] | None,
    num_walks: int,
    walk_length: int,
    sampling_seed: int,
    resample: bool,
    edge_weight: bool | None,
    edge_features: bool,
    hidden_dim: int,
    embedding_dim: int,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    weight_decay: float,
    seed: int,
) -> None:
    """Train an example GraphSAGE, on the same samples that are served."""
    plan = TrainingPlan(
        task=task,
        layer_fanouts=num_neighbors[::-1],  # the layer applied first samples the last hop
        sampling=Sampling(
            strategy=strategy, seed=sampling_seed, num_walks=num_walks, walk_length=walk_length
        ),
        resample=resample,
        edge_weight=edge_weight,
        edge_features=edge_features,
        hidden_dim=hidden_dim,
        embedding_dim=embedding_dim,
        num_epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        seed=seed,
    )
    snapshot = Snapshot.open(graph_folder)
    result = train(snapshot, plan, Bars())
    save_checkpoint(out, result.config, result.model, result.metrics)
    measures = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    click.echo(f"{out}: {'accuracy' if task == 'classification' else 'measures'}: {measures}")


@click.command("pack")
@click.option("--name", required=True, help="Model name, as in /predictions/NAME.")
@click.option("--version", required=True, help="Version, such as 1.0.")
@click.option(
    "--model",
    "model_folder",
    type=EXISTING_FOLDER,
    required=True,
    help="Folder that `hopserve export` wrote.",
)
@click.option(
    "--graph",
    "graph_folder",
    type=EXISTING_FOLDER,
    required=True,
    help="Snapshot that workers open; it is not packed.",
)
@click.option("--store", type=ANY_PATH, default=Path("model_store"), show_default=True, help="Model store.")
@click.option(
    "--handler",
    "handler_package",
    type=EXISTING_FOLDER,
    default=PackPlan.handler_package,
    help="Handler package to pack.  [default: the installed one]",
)
@click.option(
    "--batch-size",
    type=_POSITIVE,
    default=PackPlan.batch_size,
    show_default=True,
    help="Requests that TorchServe sends at once, at most.",
)
@click.option(
    "--max-batch-delay-ms",
    type=_POSITIVE,
    default=PackPlan.max_batch_delay_ms,
    show_default=True,
    help="How long a request waits for company.",
)
@click.option(
    "--workers",
    type=_POSITIVE,
    default=PackPlan.num_workers,
    show_default=True,
    help="Worker processes at the start.",
)
@click.option(
    "--max-workers",
    type=_POSITIVE,
    default=PackPlan.max_workers,
    show_default=True,
    help="Worker processes at most; the CPU's cores are shared out among so many.",
)
@click.option(
    "--response-timeout-s",
    type=_POSITIVE,
    default=PackPlan.response_timeout_s,
    show_default=True,
    help="A worker that takes longer for a batch is restarted.",
)
@click.option(
    "--startup-timeout-s",
    type=_POSITIVE,
    default=PackPlan.startup_timeout_s,
    show_default=True,
    help="A worker that is not ready by then is stopped and started again.",
)
@click.option(
    "--setting",
    "settings",
    type=Setting(),
    multiple=True,
    help="A setting of the handler, such as max_bytes_per_forward=500000000; may be given several times.",
)
def pack_command(
    name: str,
    version: str,
    model_folder: Path,
    graph_folder: Path,
    store: Path,
    handler_package: Path,
    batch_size: int,
    max_batch_delay_ms: int,
    workers: int,
    max_workers: int,
    response_timeout_s: int,
    startup_timeout_s: int,
    settings: tuple[tuple[str, Any], ...],
) -> None:
    """Pack an exported model and the handler into NAME-VERSION.mar."""
    plan = PackPlan(
        name=name,
        version=version,
        model_folder=model_folder,
        graph_folder=graph_folder,
        handler_package=handler_package,
        batch_size=batch_size,
        max_batch_delay_ms=max_batch_delay_ms,
        num_workers=workers,
        max_workers=max_workers,
        response_timeout_s=response_timeout_s,
        startup_timeout_s=startup_timeout_s,
        settings=dict(settings),
    )
    click.echo(str(pack(plan, store, say)))


@click.command("pack")
@click.argument("graph_folder", metavar="FOLDER", type=EXISTING_FOLDER)
@click.option("--name", default=GraphPlan.name, show_default=True, help="As in /predictions/NAME.")
@click.option("--version", default=GraphPlan.version, show_default=True)
@click.option("--store", type=ANY_PATH, default=Path("model_store"), show_default=True, help="Model store.")
@click.option(
    "--batch-size",
    type=_POSITIVE,
    default=GraphPlan.batch_size,
    show_default=True,
    help="Requests that become durable together, at most.",
)
@click.option(
    "--setting",
    "settings",
    type=Setting(),
    multiple=True,
    help="A setting of the handler, such as compact_after=1000000; may be given several times.",
)
def graph_pack_command(
    graph_folder: Path,
    name: str,
    version: str,
    store: Path,
    batch_size: int,
    settings: tuple[tuple[str, Any], ...],
) -> None:
    """Pack what a graph is changed through into NAME-VERSION.mar.

    The graph itself stays where it is.
    """
    plan = GraphPlan(name, version, graph_folder=graph_folder, batch_size=batch_size, settings=dict(settings))
    click.echo(str(pack(plan, store, say)))


@click.command("metrics-file")
def metrics_file_command() -> None:
    """Print the metrics.yaml that TorchServe needs as its metrics_config."""
    click.echo("# Written by `hopserve metrics-file`; change handler/metrics.py instead.")
    click.echo(yaml.safe_dump(torchserve_metrics_file(), sort_keys=False), nl=False)
