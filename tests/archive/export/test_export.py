"""An exported model is the eager one, on every shape, or it is not written."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from archive.export import parity
from archive.export.export import ExportReport, adopt_file, export_model
from archive.export.plan import ExportPlan
from handler.errors import ModelError
from handler.graph.sampling import Sampling
from handler.model.signature import EdgeInput, FileFormat, read_signature
from tests.models import export, random_model

EDGE_INPUTS: list[tuple[EdgeInput, ...]] = [
    ("edge_weight",),
    ("edge_attr",),
    ("edge_weight", "edge_attr"),
    ("edge_attr", "edge_weight"),
]
FANOUTS = [(2,), (3, 3), (2, 4), (4, 2), (1, 3, 2), (3, 1, 2), (2, 2, 2, 2)]
NUM_SHAPES = 10
PLAN = ExportPlan(task="embedding", layer_fanouts=(3,), feature_dim=3, layers=False)


class OneLayer(nn.Module):
    """A layer, and what is done to its output."""

    def __init__(self, finish: Callable[[Tensor], Any] = lambda h: h) -> None:
        super().__init__()
        self.conv = SAGEConv(3, 4)
        self.finish = finish

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.finish(self.conv(x, edge_index))


@pytest.mark.parametrize("fanouts", FANOUTS)
@pytest.mark.parametrize("labels", [("a", "b"), ()])
def test_the_export_equals_the_eager_model(
    tmp_path: Path, fanouts: tuple[int, ...], labels: tuple[str, ...]
) -> None:
    config, model = random_model(layer_fanouts=fanouts, labels=labels)
    report = export(config, model, tmp_path / "export")
    assert report.parity.num_shapes == NUM_SHAPES
    assert report.parity.worst_difference <= 1e-5
    signature = read_signature(tmp_path / "export")
    assert signature == report.signature
    assert (signature.layer_fanouts, signature.labels, signature.feature_dim) == (fanouts, labels, 3)
    assert signature.outputs == (("embedding", "prediction") if labels else ("embedding",))


@pytest.mark.parametrize("edge_inputs", EDGE_INPUTS)
def test_the_export_takes_what_edges_have(tmp_path: Path, edge_inputs: tuple[EdgeInput, ...]) -> None:
    edge_dim = 2 if "edge_attr" in edge_inputs else 0
    walks = Sampling(strategy="walk", num_walks=9)
    config, model = random_model((2, 4, 3), edge_inputs=edge_inputs, edge_dim=edge_dim, sampling=walks)
    assert export(config, model, tmp_path / "export").parity.worst_difference <= 1e-5
    signature = read_signature(tmp_path / "export")
    assert (signature.edge_inputs, signature.edge_dim) == (edge_inputs, edge_dim)
    assert signature.sampling == walks


def _spoilt(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[list[Tensor]], list[Tensor]]) -> None:
    """Let the file be called with other tensors than it should be."""
    given = parity.SweepGraph.given

    def spoilt(self: Any, sampled: Any) -> Any:
        right = given(self, sampled)
        return dataclasses.replace(right, tensors=tuple(spoil(list(right.tensors))))

    monkeypatch.setattr(parity.SweepGraph, "given", spoilt)


@pytest.mark.parametrize("edge_inputs", EDGE_INPUTS)
def test_a_forward_that_mixes_up_the_data_of_edges_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edge_inputs: tuple[EdgeInput, ...]
) -> None:
    config, model = random_model((3,), edge_inputs=edge_inputs, edge_dim=1 * ("edge_attr" in edge_inputs))
    _spoilt(monkeypatch, lambda tensors: [*tensors[:3], *(values.flip(0) for values in tensors[3:])])
    with pytest.raises(ModelError, match="differs from the eager one"):
        export(config, model, tmp_path / "export")


def test_a_difference_is_found_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _spoilt(monkeypatch, lambda tensors: [tensors[0] * 1.001, *tensors[1:]])
    with pytest.raises(
        ModelError, match=r"differs from the eager one by \d.\de-0\d .* on 1 seeds with 1 nodes and 0 edges"
    ):
        export(*random_model(), tmp_path / "export")
    assert not list(tmp_path.iterdir())


def test_a_layer_that_is_given_more_than_its_fanout_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archive.export.parity._SampleOfLayer.__call__", lambda self, *given: given[1:])
    with pytest.raises(ModelError, match="differs from the eager one"):
        export(*random_model((2, 4)), tmp_path / "export")


def test_equal_weights_change_nothing() -> None:
    _, plain = random_model()
    _, weighted = random_model(edge_inputs=("edge_weight",))
    weighted.load_state_dict(plain.state_dict())
    x, edge_index = torch.randn(5, 3), torch.tensor([[1, 2, 3, 4, 0], [0, 0, 0, 3, 2]])
    found = weighted(x, edge_index, edge_weight=torch.full((5,), 0.25))
    for one, other in zip(found, plain(x, edge_index), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_model_exported_again_replaces_the_files_of_the_other_format(tmp_path: Path) -> None:
    for file_format, name in (("onnx", "model.onnx"), ("torchscript", "model.pt")):
        plan = dataclasses.replace(PLAN, file_format=file_format)
        export_model(OneLayer(), plan, tmp_path / "export")
        assert {file.name for file in (tmp_path / "export").iterdir()} == {name, "signature.json"}


def test_the_model_that_is_exported_stays_as_it_is(tmp_path: Path) -> None:
    model = OneLayer().train()
    export_model(model, PLAN, tmp_path / "export")
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("model", "change", "problem"),
    [
        (OneLayer(), {"feature_dim": 5}, "OneLayer fails on 5 nodes with 5 features"),
        (OneLayer(), {"layer_fanouts": (3, 3)}, "has 1 message-passing layers .* but 2 numbers"),
        (OneLayer(), {"edge_inputs": ("edge_weight",)}, "with edge_weight: .*unexpected keyword"),
        (
            OneLayer(),
            {"task": "classification", "labels": ("a",)},
            "predicts 4 numbers per node, but 1 labels",
        ),
        (OneLayer(), {"task": "regression", "targets": ("a", "b")}, "4 numbers per node, but 2 targets"),
        (OneLayer(), {"outputs": ("embedding", "prediction")}, "gives 1 tensors, but 2 outputs are named"),
        (OneLayer(lambda h: h.mean(0)), {}, "must have a row for each of the 5 nodes"),
        (OneLayer(lambda h: {"h": h}), {}, "gives a dict; it must give one tensor"),
        (OneLayer(lambda h: h - h.mean(0)), {}, "differs from the eager one"),
        (
            OneLayer(),
            {"task": "classification", "labels": ("a", "b", "c", "d"), "thresholds": {"e": 0.5}},
            "a threshold for 'e', which is no label",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(
    tmp_path: Path, model: nn.Module, change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ModelError, match=problem):
        export_model(model, dataclasses.replace(PLAN, **change), tmp_path / "export")
    assert not list(tmp_path.iterdir())


class Dot(nn.Module):
    """A head of two arguments."""

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return (source * target).sum(-1)


class Three(nn.Module):
    """No head: it takes one argument too many."""

    def forward(self, source: Tensor, target: Tensor, third: Tensor) -> Tensor:
        return source + target + third


@pytest.mark.parametrize("file_format", ["torchscript", "onnx"])
@pytest.mark.parametrize("head", [Dot(), nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 1))])
def test_a_link_head_is_a_file_of_its_own(tmp_path: Path, file_format: FileFormat, head: nn.Module) -> None:
    plan = dataclasses.replace(PLAN, task="link", link_score="head", head=head, file_format=file_format)
    report = export_model(OneLayer(), plan, tmp_path / "export")
    assert (tmp_path / "export" / report.signature.head_file).exists()
    assert set(report.signature.checksums) == {report.signature.model_file, report.signature.head_file}


def test_a_head_that_takes_something_else_is_refused(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, task="link", link_score="head", head=Three())
    with pytest.raises(ModelError, match="the link head Three takes 3 arguments"):
        export_model(OneLayer(), plan, tmp_path / "export")
    plan = dataclasses.replace(plan, head=nn.Linear(3, 1))
    with pytest.raises(ModelError, match="link head"):
        export_model(OneLayer(), plan, tmp_path / "export")


def _loads_without_pyg(folder: Path, code: str) -> None:
    code = f"""
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
{code}
assert embedding.shape == (1, 4) and logits.shape == (1, 2)
assert "torch_geometric" not in sys.modules and "handler" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder)


_ARGUMENTS = """
import torch
edge_index = torch.tensor([[1], [0]])
given = torch.ones(2, 3), edge_index, torch.tensor([0, 1])
"""


_ONNX = """
import onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
given = np.ones((2, 3), np.float32), np.array([[1], [0]]), np.array([0, 1])
names = [each.name for each in session.get_inputs()]
embedding, logits = session.run(None, dict(zip(names, given)))
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("contract", ["layered", "plain"])
@pytest.mark.parametrize(
    ("file_format", "run"),
    [
        ("torchscript", _ARGUMENTS + "embedding, logits = torch.jit.load('model.pt')(*given[:count])"),
        (
            "pt2",
            _ARGUMENTS + "embedding, logits = torch._inductor.aoti_load_package('model.pt2')(*given[:count])",
        ),
        (
            "onnx",
            _ONNX,
        ),
    ],
)
def test_an_exported_file_needs_neither_pyg_nor_hopserve(
    tmp_path: Path, file_format: FileFormat, run: str, contract: Any
) -> None:
    if file_format == "pt2" and contract == "plain":
        pytest.skip("compiling takes long, and one contract is enough")
    config, model = random_model((3,))
    plan = dataclasses.replace(config.export_plan(file_format), contract=contract, layers=False)
    export_model(model, plan, tmp_path / "export")
    count = 3 if contract == "layered" else 2
    code = f"count = {count}\n{run}\n"
    if contract == "plain":  # which answers for every node
        code += "assert embedding.shape == (2, 4)\nembedding, logits = embedding[:1], logits[:1]\n"
    _loads_without_pyg(tmp_path / "export", code)


def _adopt(path: Path, module: Any, **change: Any) -> ExportReport:
    file = path / "own.pt"
    torch.jit.save(module, str(file))  # type: ignore[no-untyped-call]
    return adopt_file(file, dataclasses.replace(PLAN, contract="plain", **change), path / "export")


class Mean(nn.Module):
    """A forward as others write it, in plain PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        total = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return self.lin(torch.cat([x, total], dim=1))


class Company(Mean):
    """A forward whose answers depend on what else is asked."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(torch.cat([x, x.mean(0, keepdim=True).expand_as(x)], dim=1))


def test_a_file_of_others_is_served_as_it_is(tmp_path: Path) -> None:
    report = _adopt(tmp_path, torch.jit.script(Mean()))
    assert report.parity.num_shapes == NUM_SHAPES
    assert report.signature.embedding_dim == 4
    assert (tmp_path / "export" / "model.pt").read_bytes() == (tmp_path / "own.pt").read_bytes()
    assert read_signature(tmp_path / "export").contract == "plain"


def test_a_file_whose_answers_depend_on_their_company_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="differs .* on 3 seeds"):
        _adopt(tmp_path, torch.jit.script(Company()))


def test_a_trace_that_has_baked_in_its_example_is_refused(tmp_path: Path) -> None:
    def baked(x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 1)) + torch.zeros(7, 4)

    example = torch.ones(7, 3), torch.zeros((2, 0), dtype=torch.long)
    with pytest.raises(ModelError, match=r"own.pt: fails when it is called with \[\d+x3\], \[2x\d+\]"):
        _adopt(tmp_path, torch.jit.trace(baked, example))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.pt").write_bytes(b"not a model")
    plan = dataclasses.replace(PLAN, contract="plain")
    with pytest.raises(ModelError, match=r"own.pt: not a TorchScript model"):
        adopt_file(tmp_path / "own.pt", plan, tmp_path / "export")
    (tmp_path / "own.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"own.onnx: not an ONNX model"):
        adopt_file(tmp_path / "own.onnx", dataclasses.replace(plan, file_format="onnx"), tmp_path / "export")
    (tmp_path / "own.pt2").write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"own.pt2: not an AOTInductor package"):
        adopt_file(tmp_path / "own.pt2", dataclasses.replace(plan, file_format="pt2"), tmp_path / "export")


def test_training_never_sees_the_dropout_of_an_export(tmp_path: Path) -> None:
    config, model = random_model()
    model.train()
    assert export(config, model, tmp_path / "export").parity.worst_difference <= 1e-5
