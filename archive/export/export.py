"""Exports a model: writes it, compares the file with the eager model, and only then puts it in place."""

from __future__ import annotations

import copy
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch import Tensor, fx, nn

import handler
from archive.export.folder import LAYERS, signed, staging
from archive.export.formats import Writer, writers
from archive.export.heads import LinkHead, check_head, example_pair
from archive.export.layer_files import write_layers
from archive.export.layered import LayeredModel, layered
from archive.export.parity import ParityReport, SweepGraph, check_company, check_layered, check_plain
from archive.export.plan import ExportPlan
from handler.errors import ModelError, in_one_line
from handler.model.device import on_device
from handler.model.exported import ExportedModel, Model, ModelInput
from handler.model.runtime import Runtime, load_runtime
from handler.model.signature import FORMAT_VERSION, Output, Signature

Report = Callable[[str], None]


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how far it was from the eager model.

    Args:
        method: how the file was made, such as `scripted`.
    """

    signature: Signature
    method: str
    parity: ParityReport


def export_model(
    model: nn.Module, plan: ExportPlan, folder: Path, report: Report = lambda step: None
) -> ExportReport:
    """Write a model's file and `signature.json` to `folder`, and below it its layers as far as it has them.

    Args:
        model: its forward takes `x`, `edge_index`, and the edge inputs by name.
        report: is told what is being done; also that a model is written without layers, and why.

    Raises:
        ModelError: the model cannot be exported so, or its file differs from the eager model by more than
            1e-5 of the largest value; nothing is written then.
    """
    model = _ready(model)
    head = None if plan.head is None else LinkHead(_ready(plan.head))
    outputs, widths = _outputs(model, plan)
    made: LayeredModel | None = None
    if plan.contract == "layered":
        # ONNX has no fused form: its embedding bags are loops.
        made = _layered(model, plan, fuse=plan.file_format != "onnx")
    module = _plain(model, plan) if made is None else made.module
    signature = _signature(plan, outputs, widths, takes_degree=made is not None and made.takes_degree)
    graph = SweepGraph(signature)

    def check(exported: ExportedModel) -> ParityReport:
        if head is not None:
            check_head(head, exported)
        if made is None:
            return check_plain(model, exported, graph)
        return check_layered(model, made.depths, exported, graph)

    with staging(folder) as part:
        report(f"writing {signature.model_file}")
        if head is not None:
            _write_head(head, signature, plan, part)
        method, parity = _write_first_right(module, signature, plan, graph, part, check, report)
        signature = signed(signature, part)
        if made is not None and plan.layers:
            _write_layers(model, plan, signature, graph, part, method, report)
    return ExportReport(signature, method, parity)


def adopt_file(
    path: Path, plan: ExportPlan, folder: Path, report: Report = lambda step: None
) -> ExportReport:
    """Take a file as it is, with no eager model to compare it with, and write its signature beside a copy.

    It is compared with itself instead: the answer for each seed must be the same in a batch and alone.

    Raises:
        ModelError: the file cannot be loaded, or fails, or answers otherwise in company.
    """
    draft = _signature(plan, plan.outputs or _default_outputs(plan, 1), {})
    graph = SweepGraph(draft)
    device = torch.device(plan.device)
    report(f"loading {path}")
    runtime = load_runtime(path, plan.file_format, device)
    outputs, widths = _outputs_of_file(path, runtime, graph.example(), plan)
    signature = _signature(plan, outputs, widths)
    with staging(folder) as part:
        shutil.copy(path, part / signature.model_file)
        signature = signed(signature, part)
        report("comparing its answers in company with those alone")
        parity = check_company(ExportedModel.load(part, device), graph)
    return ExportReport(signature, "as it was", parity)


def _ready(model: nn.Module) -> nn.Module:
    """A copy of a model to be evaluated, on the CPU, whose layers keep nothing of an earlier graph."""
    ready = copy.deepcopy(model).cpu().float().eval()
    for module in ready.modules():
        if getattr(module, "cached", False):
            module.cached = False  # type: ignore[assignment]
    return ready.requires_grad_(requires_grad=False)


def _layered(model: nn.Module, plan: ExportPlan, *, fuse: bool) -> LayeredModel:
    return layered(model, plan.layer_fanouts, plan.feature_dim, plan.edge_inputs, plan.edge_dim, fuse=fuse)


def _outputs(model: nn.Module, plan: ExportPlan) -> tuple[tuple[Output, ...], dict[Output, int]]:
    """What a forward gives, and how wide each is."""
    num_nodes, edge_index = 5, torch.tensor([[1, 2, 3], [0, 0, 1]])
    shapes = {"edge_weight": (3,), "edge_attr": (3, plan.edge_dim)}
    edge_values = {name: torch.ones(shapes[name]) for name in plan.edge_inputs}
    try:
        with torch.no_grad():
            given = model(torch.ones(num_nodes, plan.feature_dim), edge_index, **edge_values)
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} fails on {num_nodes} nodes with {plan.feature_dim} features"
            f"{_with_edges(plan)}: {in_one_line(error)}"
        ) from error
    tensors = [given] if isinstance(given, Tensor) else given
    if not isinstance(tensors, list | tuple) or not all(isinstance(each, Tensor) for each in tensors):
        raise ModelError(
            f"{type(model).__name__} gives a {type(given).__name__}; it must give one tensor with a row per"
            " node, or two"
        )
    return _named(type(model).__name__, tensors, num_nodes, plan)


def _outputs_of_file(
    path: Path, runtime: Runtime, given: ModelInput, plan: ExportPlan
) -> tuple[tuple[Output, ...], dict[Output, int]]:
    try:
        tensors = runtime([on_device(tensor, torch.device(plan.device)) for tensor in given.tensors])
    except Exception as error:
        names = ", ".join(f"[{'x'.join(map(str, each.shape))}]" for each in given.tensors)
        raise ModelError(f"{path}: fails when it is called with {names}: {in_one_line(error)}") from error
    rows = given.num_seeds if given.seed_rows is None else len(given.tensors[0])
    return _named(str(path), tensors, rows, plan)


def _named(
    who: str, tensors: Sequence[Tensor], num_rows: int, plan: ExportPlan
) -> tuple[tuple[Output, ...], dict[Output, int]]:
    outputs = plan.outputs or _default_outputs(plan, len(tensors))
    if len(outputs) != len(tensors):
        raise ModelError(f"{who} gives {len(tensors)} tensors, but {len(outputs)} outputs are named")
    widths: dict[Output, int] = {}
    for name, tensor in zip(outputs, tensors, strict=True):
        if tensor.dim() not in {1, 2} or tensor.size(0) != num_rows:
            raise ModelError(
                f"{who} gives a tensor of shape {list(tensor.shape)} as {name}; it must have a row for each"
                f" of the {num_rows} nodes"
            )
        widths[name] = tensor.size(1) if tensor.dim() == 2 else 1
    return outputs, widths


def _default_outputs(plan: ExportPlan, count: int) -> tuple[Output, ...]:
    if count == 1:
        return ("prediction",) if plan.task in {"classification", "regression"} else ("embedding",)
    return ("embedding", "prediction")


def _with_edges(plan: ExportPlan) -> str:
    return f", with {' and '.join(plan.edge_inputs)}" if plan.edge_inputs else ""


def _plain(model: nn.Module, plan: ExportPlan) -> fx.GraphModule:
    """The whole forward, called with `x`, `edge_index` and the edge inputs in order."""
    graph = fx.Graph()
    x, edge_index, *edge_values = (
        graph.placeholder(name, type_expr=Tensor) for name in ("x", "edge_index", *plan.edge_inputs)
    )
    named: dict[str, Any] = dict(zip(plan.edge_inputs, edge_values, strict=True))
    graph.output(graph.call_module("model", (x, edge_index), named))
    return fx.GraphModule({"model": model}, graph, "PlainModel").eval()


def _signature(
    plan: ExportPlan,
    outputs: tuple[Output, ...],
    widths: dict[Output, int],
    *,
    takes_degree: bool = False,
) -> Signature:
    signature = Signature(
        format_version=FORMAT_VERSION,
        task=plan.task,
        contract=plan.contract,
        file_format=plan.file_format,
        device=plan.device if plan.file_format == "pt2" else "any",
        feature_dim=plan.feature_dim,
        embedding_dim=widths.get("embedding", 0),
        outputs=outputs,
        layer_fanouts=plan.layer_fanouts,
        sampling=plan.sampling,
        edge_inputs=plan.edge_inputs,
        edge_dim=plan.edge_dim,
        takes_degree=takes_degree,
        labels=plan.labels,
        multi_label=plan.multi_label,
        thresholds=dict(plan.thresholds),
        targets=plan.targets,
        link_score=plan.link_score,
        checksums={},
        versions={
            "hopserve": handler.__version__,
            "torch": str(torch.__version__),
            "torch_geometric": torch_geometric.__version__,
            "python": platform.python_version(),
        },
    )
    if widths:
        _check_signature(signature, widths.get("prediction", 0))
    return signature


def _check_signature(signature: Signature, prediction_dim: int) -> None:
    if prediction_dim != signature.prediction_dim:
        what = "targets" if signature.task == "regression" else "labels"
        raise ModelError(
            f"the model predicts {prediction_dim} numbers per node, but {signature.prediction_dim} {what} are"
            " named"
        )
    for problem in signature.problems():
        raise ModelError(problem)


def _write_first_right(
    module: nn.Module,
    signature: Signature,
    plan: ExportPlan,
    graph: SweepGraph,
    part: Path,
    check: Callable[[ExportedModel], ParityReport],
    report: Report,
) -> tuple[str, ParityReport]:
    """Write the file in the first way that works and answers right."""
    reasons = []
    example = graph.example().tensors
    for method, write in writers(plan.file_format).items():
        try:
            _write(write, module, example, part / signature.model_file, plan)
            report(f"comparing the {method} file with the eager model")
            return method, check(_load(part, signature, plan))
        except ModelError as error:
            reasons.append(f"{method}: {error}")
            report(f"{method}: {error}")
    raise ModelError("; ".join(reasons))


def _write(write: Writer, module: nn.Module, example: Sequence[Tensor], path: Path, plan: ExportPlan) -> None:
    device = torch.device(plan.device)
    try:
        write(module.to(device), [tensor.to(device) for tensor in example], path)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"cannot be written as {plan.file_format}: {in_one_line(error)}") from error


def _write_head(head: LinkHead, signature: Signature, plan: ExportPlan, part: Path) -> None:
    reasons = []
    for write in writers(plan.file_format).values():
        try:
            _write(write, head, example_pair(signature.embedding_dim), part / signature.head_file, plan)
        except ModelError as error:
            reasons.append(str(error))
        else:
            return
    raise ModelError(f"the link head {reasons[-1]}")


def _write_layers(
    model: nn.Module,
    plan: ExportPlan,
    signature: Signature,
    graph: SweepGraph,
    part: Path,
    method: str,
    report: Report,
) -> None:
    """Write the layers of a model that can be split; it is complete without them."""
    report("writing its layers")
    ways = writers("torchscript")
    if method == "traced":  # since the model could not be scripted
        ways = {method: ways[method]}
    made = _layered(model.cpu(), plan, fuse=True)  # a pt2 file may have been compiled on another device

    def check(chain: Model) -> ParityReport:
        return check_layered(model, made.depths, chain, graph)

    try:
        write_layers(made, signature, graph.example().tensors, ways, check, part)
    except ModelError as error:
        shutil.rmtree(part / LAYERS, ignore_errors=True)
        report(f"no layers of their own: {error}; precomputing will run whole trees")


def _load(part: Path, signature: Signature, plan: ExportPlan) -> ExportedModel:
    signed(signature, part)
    return ExportedModel.load(part, torch.device(plan.device))
