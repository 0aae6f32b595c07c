"""The layers of a model, each run over all nodes before the next one, give what the model gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric import nn as pyg

from archive.export.export import export_model
from archive.export.layered import layered
from archive.export.plan import ExportPlan
from archive.export.steps import Step, steps
from handler.errors import ModelError
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.fanout import FanoutPlan
from handler.graph.features import DenseFeatures
from handler.graph.snapshot import Snapshot
from handler.model.exported import ExportedModel, ModelInput
from handler.model.output import ModelOutput
from handler.model.runtime import as_outputs
from handler.model.signature import EdgeInput, FileFormat, Signature, read_signature
from tests.archive.export.nets import DIM, EDGE_DIM, Net, net, sage
from tests.archive.export.test_layered import batch_norm
from tests.models import embed_all, random_model

CPU = torch.device("cpu")
NUM_NODES, FANOUT = 40, 4


@dataclasses.dataclass(frozen=True)
class Graph:
    """All sampled edges of all nodes, ascending by target, and their data."""

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor
    edge_attr: Tensor

    def edge_values(self, names: tuple[EdgeInput, ...]) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in names}


def some_graph(feature_dim: int = DIM) -> Graph:
    """A graph in which no node has more neighbors than layers look at, and some have none; no self-loops."""
    generator = np.random.default_rng(0)
    ends = [
        (source, target)
        for target in range(NUM_NODES)
        for source in generator.permutation(NUM_NODES)[: generator.integers(0, FANOUT + 1)]
        if source != target
    ]
    edge_index = torch.tensor(ends).T.contiguous()
    torch.manual_seed(1)
    count = edge_index.size(1)
    return Graph(
        torch.randn(NUM_NODES, feature_dim), edge_index, torch.rand(count) + 0.1, torch.randn(count, EDGE_DIM)
    )


def run_layer(layer: ExportedModel, graph: Graph, state: Tensor, targets: Tensor) -> ModelOutput:
    """A layer of some targets: their rows come first, and then one row for each edge."""
    signature = layer.signature
    source, target = graph.edge_index
    used = torch.cat([(target == node).nonzero().squeeze(1) for node in targets])
    sizes = torch.tensor([int((target == node).sum()) for node in targets])
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    own = torch.arange(len(targets)).repeat_interleave(sizes)
    rows = torch.cat([targets, source[used]])
    tensors = [state[rows], torch.stack([len(targets) + torch.arange(len(used)), own]), ptr]
    tensors += [values[used] for values in graph.edge_values(signature.edge_inputs).values()]
    if signature.takes_degree:
        weighted = "edge_weight" in signature.edge_inputs
        weight = graph.edge_weight if weighted else torch.ones(len(target))
        tensors.append(torch.zeros(NUM_NODES).index_add(0, target, weight)[rows])
    assert len(tensors) == len(signature.argument_names())
    return layer.run(ModelInput(tuple(tensors), len(targets)))


def run_chain(folder: Path, num_layers: int, graph: Graph, chunk: int = 7) -> dict[str, NDArray[np.float32]]:
    """What the layers' files say of all nodes, computed layer by layer, some targets at a time."""
    state = graph.x
    for number in range(1, num_layers + 1):
        layer = ExportedModel.load(folder / "layers" / str(number), CPU)
        assert state.size(1) == layer.signature.feature_dim
        given = [run_layer(layer, graph, state, some) for some in torch.arange(NUM_NODES).split(chunk)]
        state = torch.from_numpy(np.concatenate([each.embedding for each in given]))
    return {
        name: np.concatenate([getattr(each, name) for each in given]) for name in ("embedding", "prediction")
    }


def exported(model: nn.Module, folder: Path, **plan: Any) -> tuple[Signature, list[str]]:
    """The signature of what is written, and what was said on the way."""
    chosen: dict[str, Any] = {
        "task": "embedding",
        "layer_fanouts": (FANOUT, FANOUT),
        "feature_dim": DIM,
    } | plan
    if "edge_attr" in chosen.get("edge_inputs", ()):
        chosen["edge_dim"] = EDGE_DIM
    said: list[str] = []
    report = export_model(model.eval(), ExportPlan(**chosen), folder, said.append)
    return report.signature, said


def assert_chain_is(model: nn.Module, folder: Path, **plan: Any) -> None:
    """Export a model, and compare its layers with its forward on the whole graph."""
    signature, said = exported(model, folder, **plan)
    assert not [word for word in said if "no layers" in word]
    graph = some_graph(signature.feature_dim)
    found = run_chain(folder, len(signature.layer_fanouts), graph)
    with torch.no_grad():
        wanted = as_outputs(model(graph.x, graph.edge_index, **graph.edge_values(signature.edge_inputs)))
    for name, values in zip(signature.outputs, wanted, strict=True):
        difference = np.abs(found[name] - values.numpy()).max()
        assert difference <= 1e-5 * np.abs(values.numpy()).max()


@pytest.mark.parametrize("fanouts", [(4,), (4, 4), (4, 4, 4)])
@pytest.mark.parametrize("edge_inputs", [(), ("edge_weight",), ("edge_weight", "edge_attr")])
def test_the_layers_of_graphsage_are_the_model(
    tmp_path: Path, fanouts: tuple[int, ...], edge_inputs: tuple[EdgeInput, ...]
) -> None:
    edge_dim = EDGE_DIM * ("edge_attr" in edge_inputs)
    _, model = random_model(fanouts, edge_inputs=edge_inputs, edge_dim=edge_dim)
    assert_chain_is(
        model, tmp_path / "export", layer_fanouts=fanouts, edge_inputs=edge_inputs, feature_dim=3,
        task="classification", labels=("a", "b"),
    )  # fmt: skip


def test_each_layer_has_a_sample_of_its_own(
    tmp_path: Path, make_snapshot: Callable[[GraphArrays], Snapshot]
) -> None:
    fanouts, generator = (2, 4, 1), np.random.default_rng(0)
    config, model = random_model(fanouts, labels=())
    x = generator.standard_normal((NUM_NODES, 3)).astype(np.float32)
    edges = EdgeArrays(generator.integers(0, NUM_NODES, (2, 300)))
    snapshot = make_snapshot(GraphArrays("g", edges, NUM_NODES, features=DenseFeatures(x)))
    export_model(model, config.export_plan(), tmp_path / "export")
    everyone, state = np.arange(NUM_NODES), x
    for number, fanout in enumerate(fanouts, start=1):
        layer = ExportedModel.load(tmp_path / "export" / "layers" / str(number), CPU)
        assert layer.signature.layer_fanouts == (fanout,)
        trees = snapshot.sampler().trees(everyone, FanoutPlan.of((fanout,)))
        source, target = trees.node[trees.edge_index]
        ptr = np.concatenate([[0], np.bincount(target, minlength=NUM_NODES).cumsum()])
        arrays = state, np.stack([source, target]), ptr
        state = layer.run(ModelInput(tuple(map(torch.from_numpy, arrays)), NUM_NODES)).embedding
    wanted = embed_all(model, snapshot, fanouts).numpy()
    assert np.abs(state - wanted).max() <= 1e-5 * np.abs(wanted).max()


def _by_size(net: Net, x: Tensor, e: Tensor) -> Tensor:
    h = net.one(x, e).view(x.size(0), 2, -1)
    return net.two(h.transpose(1, 2).reshape(x.size(0), DIM), e) + h.view(x.size(0), -1)


MODELS: dict[str, nn.Module] = {
    "GCN": pyg.models.GCN(DIM, 5, 2, 4),
    "GAT": pyg.models.GAT(DIM, 6, 2, 4, heads=2),
    "GIN with batch norms": pyg.models.GIN(DIM, 5, 2, 4, norm="batch_norm"),
    "layers side by side": pyg.models.GraphSAGE(DIM, 5, 2, 4, jk="cat", norm="batch_norm"),
    "the largest of layers": pyg.models.GCN(DIM, 5, 2, 4, jk="max"),
    "layers read by an LSTM": pyg.models.GraphSAGE(DIM, 5, 2, 4, jk="lstm"),
    "skip connections": net(lambda net, x, e: net.two(h := net.one(x, e).relu(), e) + h + x),
    "work before the first layer": net(
        lambda net, x, e: net.two(net.one(h := net.lin(x).relu(), e), e) * h, lin=nn.Linear(DIM, DIM)
    ),
    "batch norm": net(lambda net, x, e: net.two(net.norm(net.one(x, e)).relu(), e), norm=batch_norm()),
    "states with more dimensions": net(_by_size),
    "states with one dimension": net(
        lambda net, x, e: net.two(net.one(x, e), e) * x[:, 0].unsqueeze(1) + x.mean(1).unsqueeze(1)
    ),
    "numbers beside the input": net(
        lambda net, x, e: net.two(h := net.one(x, e), e) * (s := h.sum(1)).unsqueeze(1) - s.unsqueeze(1)
    ),
    "changes in place": net(lambda net, x, e: net.two((h := net.one(x, e)).relu_(), e).add_(h)),
    "weights used by several layers": Net(lambda net, x, e: net.one(net.one(x, e), e), one=sage()),
    "attention with self-loops": Net(
        lambda net, x, e: net.two(net.one(x, e), e),
        one=pyg.GATConv(DIM, 3, heads=2, residual=True), two=pyg.GATv2Conv(DIM, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_layers_of_a_model_are_the_model(tmp_path: Path, name: str) -> None:
    assert_chain_is(MODELS[name], tmp_path / "export")


WITH_EDGES: dict[str, tuple[nn.Module, tuple[EdgeInput, ...]]] = {
    "degrees of weights": (
        Net(lambda net, x, e, edge_weight: net.two(net.one(x, e, edge_weight).relu(), e, edge_weight),
            one=pyg.GCNConv(DIM, DIM), two=pyg.GCNConv(DIM, 4)),
        ("edge_weight",),
    ),
    "an encoder of edges": (
        Net(lambda net, x, e, edge_attr: net.two(
                net.one(x, e, said := net.encode(edge_attr).relu()), e, edge_attr=said),
            encode=nn.Linear(EDGE_DIM, DIM), one=pyg.GINEConv(nn.Linear(DIM, DIM)),
            two=pyg.GATv2Conv(DIM, 4, edge_dim=DIM)),
        ("edge_attr",),
    ),
    "a layer that takes none": (
        Net(lambda net, x, e, edge_attr, edge_weight: net.two(net.one(x, e, edge_attr), e),
            one=pyg.GINEConv(nn.Linear(DIM, DIM), edge_dim=EDGE_DIM), two=sage()),
        ("edge_attr", "edge_weight"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_EDGES)
def test_layers_take_what_edges_have(tmp_path: Path, name: str) -> None:
    model, edge_inputs = WITH_EDGES[name]
    assert_chain_is(model, tmp_path / "export", edge_inputs=edge_inputs)


def test_layers_are_torchscript_whatever_the_model_is(tmp_path: Path) -> None:
    file_format: FileFormat = "onnx"
    assert_chain_is(net(lambda net, x, e: net.two(net.one(x, e), e)), tmp_path, file_format=file_format)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    layers = {f"layers/{number}/{name}" for number in (1, 2) for name in ("model.pt", "signature.json")}
    assert files == {"model.onnx", "signature.json"} | layers


def test_the_layers_say_what_they_are(tmp_path: Path) -> None:
    model = net(lambda net, x, e: net.last(net.two(h := net.one(x, e), e) + h + x), last=nn.Linear(DIM, 2))
    answers: dict[str, Any] = {"labels": ("a", "b"), "multi_label": True, "thresholds": {"a": 0.25}}
    whole, _ = exported(model, tmp_path, task="classification", layer_fanouts=(4, 3), **answers)
    first, last = (read_signature(tmp_path / "layers" / number) for number in "12")
    assert (first.feature_dim, first.embedding_dim, last.feature_dim) == (DIM, 2 * DIM, 2 * DIM)
    assert (first.task, first.outputs, first.layer_fanouts) == ("embedding", ("embedding",), (4,))
    assert (first.labels, first.multi_label, first.thresholds) == ((), False, {})
    assert (last.task, last.outputs, last.layer_fanouts) == (whole.task, whole.outputs, (3,))
    assert {name: getattr(last, name) for name in answers} == answers


def test_the_last_layer_of_a_model_with_a_head_needs_none(tmp_path: Path) -> None:
    head = nn.Linear(2 * DIM, 1)
    model = net(lambda net, x, e: net.two(net.one(x, e), e))
    assert_chain_is(model, tmp_path, task="link", link_score="head", head=head)
    assert read_signature(tmp_path).link_score == "head"
    first, last = (read_signature(tmp_path / "layers" / number) for number in "12")
    assert (first.link_score, last.link_score, last.files) == (None, "dot", ("model.pt",))


UNSPLITTABLE = net(lambda net, x, e: net.two(net.one(x, e), e) * (x > 0))


def test_a_model_that_cannot_be_split_is_exported_without_layers(tmp_path: Path) -> None:
    model = net(lambda net, x, e: net.two(net.one(x, e), e))
    exported(model, tmp_path)
    assert (tmp_path / "layers").exists()
    _, said = exported(UNSPLITTABLE, tmp_path)
    assert said[-1] == (
        "no layers of their own: later layers use `gt`, which is no float32 tensor with a row per node;"
        " precomputing will run whole trees"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"model.pt", "signature.json"}


def test_layers_that_differ_are_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archive.export.layer_files.steps", lambda *given: steps(*given)[::-1])
    _, said = exported(net(lambda net, x, e: net.two(net.one(x, e).relu(), e)), tmp_path)
    assert "no layers of their own: scripted: the exported model differs" in said[-1]
    assert not (tmp_path / "layers").exists()


def test_layers_can_be_left_out(tmp_path: Path) -> None:
    exported(net(lambda net, x, e: net.two(net.one(x, e), e)), tmp_path, layers=False)
    assert not (tmp_path / "layers").exists()


class TestSteps:
    """The splitting itself."""

    @staticmethod
    def example() -> list[Tensor]:
        edge_index, ptr = torch.tensor([[1, 2], [0, 1]]), torch.tensor([0, 1, 2])
        return [torch.randn(3, DIM), edge_index, ptr, edge_index[:, :1], ptr[:2]]

    def of(self, model: nn.Module) -> list[Step]:
        return steps(layered(model, (2, 2), DIM), self.example())

    def test_a_state_that_is_one_value_is_not_copied(self) -> None:
        for step in self.of(net(lambda net, x, e: net.two(net.one(x, e).relu(), e))):
            names = {str(node.target) for node in step.module.graph.nodes}
            assert not names & {"cat", "narrow", "reshape", "contiguous"}
            assert step.feature_dim == DIM

    def test_what_is_done_to_rows_is_done_where_it_was(self) -> None:
        model = net(
            lambda net, x, e: net.after(net.two(net.between(net.one(net.before(x), e)), e)),
            before=nn.Linear(DIM, DIM), between=nn.Linear(DIM, DIM), after=nn.Linear(DIM, 4),
        )  # fmt: skip
        found = [set(dict(step.module.named_modules())) for step in self.of(model)]
        has = [{name for name in ("before", "between", "after") if f"model.{name}" in each} for each in found]
        assert has == [{"before", "between"}, {"after"}]

    def test_a_mask_is_no_state(self) -> None:
        with pytest.raises(ModelError, match="later layers use `gt`, which is no float32 tensor"):
            self.of(UNSPLITTABLE)
