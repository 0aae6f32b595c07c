"""`hopserve export`: a trained model becomes a file that workers load."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
from torch import nn

from archive.checkpoint import load_trained
from archive.export.export import ExportReport, adopt_file, export_model
from archive.export.plan import ExportPlan
from archive.export.source import load_model
from archive.training import write_training
from handler.errors import ModelError
from handler.graph.ordering import STRATEGIES
from handler.graph.sampling import Sampling
from handler.graph.snapshot import Snapshot
from handler.model.signature import SUFFIXES, Contract, EdgeInput, FileFormat, Output
from scripts.cli.options import ANY_PATH, EXISTING_FILE, EXISTING_FOLDER, Fanouts, Names, say

_POSITIVE = click.IntRange(min=1)


class JsonObject(click.ParamType[dict[str, Any]]):
    """Keyword arguments as a JSON object."""

    name = "JSON"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            content = json.loads(str(value))
        except json.JSONDecodeError as error:
            self.fail(f"not JSON: {error}", param, ctx)
        if not isinstance(content, dict):
            self.fail('not a JSON object such as {"hidden_channels": 64}', param, ctx)
        return content


class Threshold(click.ParamType[tuple[str, float]]):
    """A label with its least probability."""

    name = "LABEL=P"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        label, _, number = str(value).rpartition("=")
        try:
            probability = float(number)
        except ValueError:
            probability = -1.0
        if not label or not 0 <= probability <= 1:
            self.fail(f"{value!r} is not a label and a probability, such as fraud=0.9", param, ctx)
        return label, probability


class Metric(click.ParamType[tuple[str, float]]):
    """A metric with its value."""

    name = "NAME=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        metric, _, number = str(value).partition("=")
        try:
            parsed = float(number)
        except ValueError:
            parsed = math.nan
        if not metric or not math.isfinite(parsed):
            self.fail(f"{value!r} is not a name and a number, such as auc=0.93", param, ctx)
        return metric, parsed


@click.command("export")
@click.option(
    "--weights",
    type=ANY_PATH,
    help="File of the weights: a state dict for --model, or without it what `hopserve train` wrote.",
)
@click.option(
    "--model", "class_path", metavar="PACKAGE.MODULE:CLASS", help="Class of the model, a torch.nn.Module."
)
@click.option(
    "--kwargs", "arguments", type=JsonObject(), default="{}", show_default=True, help="Arguments of --model."
)
@click.option(
    "--file",
    "model_file",
    type=EXISTING_FILE,
    help="A TorchScript (.pt), AOTInductor (.pt2) or ONNX (.onnx) file to serve as it is.",
)
@click.option("--out", type=ANY_PATH, required=True, help="Folder for the model's file and signature.json.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(list(SUFFIXES)),
    default="torchscript",
    show_default=True,
    help="`pt2` compiles by AOTInductor for this machine; `onnx` is run by ONNX Runtime.",
)
@click.option(
    "--contract",
    type=click.Choice(["layered", "plain"]),
    help="`layered`: each layer computes only what the next one needs; `plain`: forward(x, edge_index) over"
    " whole samples.  [default: layered; plain with --file]",
)
@click.option(
    "--num-neighbors",
    type=Fanouts(),
    help="Neighbors sampled per hop, from the seed outwards as in PyG; one number for each layer.",
)
@click.option(
    "--graph",
    "graph_folder",
    type=EXISTING_FOLDER,
    help="Snapshot to be served on: gives the number of features and the names of classes.",
)
@click.option("--feature-dim", type=_POSITIVE, help="Features per node.  [default: those of --graph]")
@click.option("--edge-weight", is_flag=True, help="The forward takes `edge_weight`.")
@click.option(
    "--edge-dim", type=_POSITIVE, help="The forward takes `edge_attr`, with so many features per edge."
)
@click.option(
    "--sampling",
    "strategy",
    type=click.Choice([*STRATEGIES, "walk"]),
    help="Which neighbors are served.  [default: the order in which the graph lies]",
)
@click.option(
    "--num-walks", type=_POSITIVE, default=Sampling().num_walks, show_default=True, help="Of `walk`."
)
@click.option(
    "--walk-length", type=_POSITIVE, default=Sampling().walk_length, show_default=True, help="Of `walk`."
)
@click.option(
    "--task",
    type=click.Choice(["embedding", "classification", "regression", "link"]),
    default="embedding",
    show_default=True,
    help="What the model's output is: an embedding, the logits of classes, numbers, or an embedding of which"
    " two make a link's score.",
)
@click.option(
    "--outputs",
    type=Names(),
    help="Of a forward that gives two tensors, which is which.  [default: embedding,prediction]",
)
@click.option("--labels", type=Names(), help="Names of the classes.  [default: those of --graph]")
@click.option("--multi-label", is_flag=True, help="A node may have several labels: sigmoid, not softmax.")
@click.option(
    "--threshold",
    "thresholds",
    type=Threshold(),
    multiple=True,
    help="Least probability with which a label is given; may be given for several labels.",
)
@click.option(
    "--targets", type=Names(), help="Names of the numbers that a regression predicts.  [default: value]"
)
@click.option(
    "--score",
    "score",
    default="dot",
    show_default=True,
    help="How two embeddings make a link's score: `dot`, `cosine`, or the name of a submodule of --model.",
)
@click.option(
    "--metric",
    "metrics",
    type=Metric(),
    multiple=True,
    help="Of the training, to be shown when the version is rolled out; what `hopserve train` found is known.",
)
def export_command(
    weights: Path | None,
    class_path: str | None,
    arguments: dict[str, Any],
    model_file: Path | None,
    out: Path,
    file_format: FileFormat,
    contract: Contract | None,
    num_neighbors: tuple[int, ...] | None,
    graph_folder: Path | None,
    score: str,
    metrics: tuple[tuple[str, float], ...],
    **options: Any,
) -> None:
    """Export a trained model, after comparing the file with the eager model.

    What `hopserve train` wrote says all of itself: --weights is enough. Of your own model, --model names the
    class and --num-neighbors how it samples. A file of another origin is given by --file.
    """
    if model_file is None and weights is None:
        raise click.UsageError("give --weights, of --model or of `hopserve train`, or --file")
    if model_file is not None and (class_path or weights):
        raise click.UsageError("--file is served as it is: give no --model and no --weights with it")
    if model_file is None and class_path is None:
        assert weights is not None  # noqa: S101 - as was just seen to
        config, trained, known = load_trained(weights)
        plan = replace(config.export_plan(file_format), contract=contract or "layered")
        _tell(out, export_model(trained, plan, out, say))
        write_training(out, known | dict(metrics))
        return
    if num_neighbors is None:
        raise click.UsageError("give --num-neighbors, one number for each layer of the model")
    plan = _plan(num_neighbors, graph_folder, file_format, contract, score, **options)
    if model_file is not None:
        _tell(out, adopt_file(model_file, _of_file(plan, model_file, contract), out, say))
        write_training(out, dict(metrics))
        return
    assert class_path is not None  # noqa: S101 - as was just seen to
    assert weights is not None  # noqa: S101
    model = load_model(class_path, arguments, weights)
    if plan.link_score == "head":
        plan = replace(plan, head=_submodule(model, score))
    _tell(out, export_model(model, plan, out, say))
    write_training(out, dict(metrics))


def _plan(
    num_neighbors: tuple[int, ...],
    graph_folder: Path | None,
    file_format: FileFormat,
    contract: Contract | None,
    score: str,
    *,
    feature_dim: int | None,
    edge_weight: bool,
    edge_dim: int | None,
    strategy: Any,
    num_walks: int,
    walk_length: int,
    task: Any,
    outputs: Any,
    labels: tuple[str, ...] | None,
    multi_label: bool,
    thresholds: tuple[tuple[str, float], ...],
    targets: tuple[str, ...] | None,
) -> ExportPlan:
    if outputs and not set(outputs) <= set(get_args(Output)):
        raise click.UsageError(f"--outputs {','.join(outputs)}: each is `embedding` or `prediction`")
    manifest = None if graph_folder is None else Snapshot.open(graph_folder).manifest
    if feature_dim is None and manifest is None:
        raise click.UsageError("give --graph, or --feature-dim")
    taken: dict[EdgeInput, bool] = {"edge_weight": edge_weight, "edge_attr": edge_dim is not None}
    if task == "classification" and labels is None:
        labels = manifest.label_names if manifest is not None else None
        if not labels:
            raise click.UsageError("give --labels, or a --graph with classes")
    if task == "regression" and targets is None:
        targets = ("value",)
    return ExportPlan(
        task=task,
        layer_fanouts=num_neighbors[::-1],  # the layer applied first samples the last hop
        feature_dim=feature_dim or manifest.feature_dim,  # type: ignore[union-attr]
        sampling=Sampling(strategy=strategy, num_walks=num_walks, walk_length=walk_length),
        edge_inputs=tuple(name for name, takes in taken.items() if takes),
        edge_dim=edge_dim or 0,
        labels=labels or (),
        multi_label=multi_label,
        thresholds=dict(thresholds),
        targets=targets or (),
        link_score=None if task != "link" else score if score in {"dot", "cosine"} else "head",  # type: ignore[arg-type]
        outputs=outputs,
        contract=contract or "layered",
        file_format=file_format,
    )


def _of_file(plan: ExportPlan, path: Path, contract: Contract | None) -> ExportPlan:
    formats = {f".{suffix}": name for name, suffix in SUFFIXES.items()}
    if path.suffix not in formats:
        raise ModelError(f"{path}: is none of {', '.join(formats)}")
    if plan.link_score == "head":
        raise click.UsageError("with --file, --score is `dot` or `cosine`")
    return replace(plan, file_format=formats[path.suffix], contract=contract or "plain")


def _submodule(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise ModelError(
            f"--score {name}: neither `dot` nor `cosine`, and the model has no submodule of this name"
        ) from None


def _tell(out: Path, report: ExportReport) -> None:
    what = "to the eager model" if report.method != "as it was" else "in any company"
    parity = report.parity
    click.echo(
        f"{out / report.signature.model_file}: {report.method}, equal {what} on {parity.num_shapes} shapes"
        f" (largest difference {parity.worst_difference:.1e})"
    )
