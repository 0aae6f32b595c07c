"""Makes the example that the quickstart serves: digits, as model `graphsage` version 1.0."""

from __future__ import annotations

from pathlib import Path

from archive.checkpoint import load_trained, save_checkpoint
from archive.datasets import load_digits
from archive.example.train import TrainingPlan, train
from archive.export.export import export_model
from archive.pack import GraphPlan, PackPlan, pack
from archive.training import write_training
from handler.graph.home import write_home
from handler.graph.layout import is_graph
from handler.graph.snapshot import Snapshot
from scripts.cli.options import Bars, say

MODEL_NAME = "graphsage"
VERSION = "1.0"


def build_example(root: Path, store: Path) -> None:
    """Make what is missing of the graph, the weights and the export below `root`/var, and the archives."""
    graph = root / "var" / "graphs" / "digits"
    model = root / "var" / "models" / f"{MODEL_NAME}-{VERSION}"
    if not is_graph(graph):
        say("building the digits graph")
        write_home(graph, load_digits())
    weights = model / "weights.pt"
    if not weights.exists():
        result = train(Snapshot.open(graph), TrainingPlan(), Bars())
        say(f"accuracy on nodes kept for testing: {result.metrics['test']:.3f}")
        save_checkpoint(weights, result.config, result.model, result.metrics)
    say("exporting and packing the model")
    config, trained, metrics = load_trained(weights)
    export_model(trained, config.export_plan(), model / "export")
    write_training(model / "export", metrics)
    plan = PackPlan(MODEL_NAME, VERSION, model_folder=model / "export", graph_folder=graph)
    pack(plan, store)
    pack(GraphPlan(graph_folder=graph), store)
