"""An archive holds all that a worker needs, and says how it is to be run."""

from __future__ import annotations

import dataclasses
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

import handler
from archive.pack import GraphPlan, PackPlan, pack
from handler.errors import HopserveError, ModelError
from handler.graph.arrays import GraphArrays
from handler.graph.edges import EdgeArrays
from handler.graph.features import DenseFeatures
from handler.graph.home import write_home
from handler.graph.sampling import Sampling
from handler.graph.writer import write_snapshot
from handler.metrics import torchserve_metrics_file
from handler.model.signature import read_signature, write_signature
from tests.conftest import Example
from tests.models import export, random_model


@pytest.fixture(scope="module")
def plan(example: Example) -> PackPlan:
    return PackPlan("graphsage", "1.0", model_folder=example.export, graph_folder=example.graph)


def test_the_archive_is_self_contained(plan: PackPlan, tmp_path: Path) -> None:
    changed = dataclasses.replace(plan, batch_size=7, max_batch_delay_ms=3, startup_timeout_s=400)
    path = pack(changed, tmp_path / "store, [1]")
    assert path == tmp_path / "store, [1]" / "graphsage-1.0.mar"
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))
        config = yaml.safe_load(archive.read("model-config.yaml"))
        assert yaml.safe_load(archive.read("metrics.yaml")) == torchserve_metrics_file()
    package = Path(handler.__file__).parent
    modules = {f"handler/{file.relative_to(package)}" for file in package.rglob("*.py")}
    assert names == modules | {
        "entry.py", "model.pt", "signature.json",
        "metrics.yaml", "model-config.yaml", "MAR-INF/MANIFEST.json",
        *(f"layers/{layer}/{name}" for layer in (1, 2) for name in ("model.pt", "signature.json")),
    }  # fmt: skip
    assert (manifest["model"]["modelName"], manifest["model"]["modelVersion"]) == ("graphsage", "1.0")
    assert (config["batchSize"], config["maxBatchDelay"]) == (7, 3)
    assert (config["minWorkers"], config["maxWorkers"]) == (1, 2)
    assert (config["responseTimeout"], config["startupTimeout"]) == (60, 400)
    assert config["handler"] == {"graph": str(plan.graph_folder.resolve())}


def test_a_model_without_layers_is_packed_without(plan: PackPlan, tmp_path: Path) -> None:
    shutil.copytree(plan.model_folder, tmp_path / "bare", ignore=shutil.ignore_patterns("layers"))
    path = pack(dataclasses.replace(plan, model_folder=tmp_path / "bare"), tmp_path)
    with zipfile.ZipFile(path) as archive:
        assert not [name for name in archive.namelist() if name.startswith("layers")]


def test_layers_of_another_model_are_refused(plan: PackPlan, tmp_path: Path) -> None:
    spoilt = dataclasses.replace(plan, model_folder=tmp_path / "export")
    shutil.copytree(plan.model_folder, spoilt.model_folder)
    second = spoilt.model_folder / "layers" / "2"
    right = read_signature(second)
    write_signature(second, msgspec.structs.replace(right, layer_fanouts=(99,)))
    with pytest.raises(ModelError, match=r"layers/2: is a layer of \[99\] neighbors, but"):
        pack(spoilt, tmp_path)
    write_signature(second, msgspec.structs.replace(right, checksums={"model.pt": "0"}))
    with pytest.raises(ModelError, match="layers/2/model.pt: its checksum is"):
        pack(spoilt, tmp_path)
    shutil.rmtree(second)
    with pytest.raises(ModelError, match="layers/2/signature.json: cannot be read"):
        pack(spoilt, tmp_path)


def test_the_handlers_settings_are_packed_and_checked(plan: PackPlan, tmp_path: Path) -> None:
    chosen = {"max_bytes_per_forward": 10**9, "over_budget": "refuse"}
    path = pack(dataclasses.replace(plan, settings=chosen), tmp_path)
    with zipfile.ZipFile(path) as archive:
        config = yaml.safe_load(archive.read("model-config.yaml"))
    assert config["handler"] == {"graph": str(plan.graph_folder), **chosen}
    for wrong, problem in (({"num_thread": 1}, "num_thread"), ({"num_threads": "many"}, "num_threads")):
        with pytest.raises(HopserveError, match=problem):
            pack(dataclasses.replace(plan, settings=wrong), tmp_path / "wrong")


def test_an_archive_is_replaced_as_a_whole(plan: PackPlan, tmp_path: Path) -> None:
    (tmp_path / "graphsage-1.0.mar").write_bytes(b"old")
    assert zipfile.is_zipfile(pack(plan, tmp_path))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "graph sage"}, "model name 'graph sage': use letters, digits"),
        ({"name": "../sage"}, "model name '../sage'"),
        ({"version": "v1"}, "model version 'v1': use numbers with dots"),
        ({"model_folder": Path("/nowhere")}, "/nowhere/signature.json: cannot be read"),
        ({"graph_folder": Path("/nowhere")}, "/nowhere/manifest.json: missing"),
        ({"handler_package": Path("/nowhere")}, "is no handler package, it has no entry.py"),
    ],
)
def test_what_cannot_be_packed_is_refused(
    plan: PackPlan, tmp_path: Path, change: dict[str, object], problem: str
) -> None:
    with pytest.raises(HopserveError, match=problem):
        pack(dataclasses.replace(plan, **change), tmp_path)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_graph_of_another_width_is_refused_with_both_numbers(plan: PackPlan, tmp_path: Path) -> None:
    import numpy as np

    features = DenseFeatures(np.zeros((2, 5), np.float32))
    write_snapshot(
        tmp_path / "graph", GraphArrays("g", EdgeArrays(np.array([[0], [1]])), 2, features=features)
    )
    with pytest.raises(HopserveError, match="graph: has 5 features per node, the model takes 64"):
        pack(dataclasses.replace(plan, graph_folder=tmp_path / "graph"), tmp_path / "store")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"sampling": Sampling(strategy="recent")},
            "graph: the graph stores no ordering `recent`, only `seeded`",
        ),
        ({"edge_inputs": ("edge_weight",)}, "graph: has no edge weights, the model takes them"),
        ({"edge_inputs": ("edge_attr",), "edge_dim": 4}, "graph: has 0 features per edge, the model takes 4"),
    ],
)
def test_a_graph_without_what_the_model_takes_is_refused(
    plan: PackPlan, tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    (tmp_path / "graph").symlink_to(plan.graph_folder)
    config, model = random_model(**change)
    export(config, model, tmp_path / "export")
    signature = read_signature(tmp_path / "export")
    write_signature(tmp_path / "export", msgspec.structs.replace(signature, feature_dim=64))
    fitted = dataclasses.replace(plan, model_folder=tmp_path / "export", graph_folder=tmp_path / "graph")
    with pytest.raises(ModelError, match=problem):
        pack(fitted, tmp_path / "store")


def test_a_handler_that_cannot_be_imported_is_found(plan: PackPlan, tmp_path: Path) -> None:
    package = tmp_path / "handler"
    shutil.copytree(plan.handler_package, package)
    with (package / "service.py").open("a") as file:
        file.write("import no_such_library\n")
    with pytest.raises(HopserveError, match="cannot be imported: ModuleNotFoundError: .*no_such_library"):
        pack(dataclasses.replace(plan, handler_package=package), tmp_path / "store")
    assert not list((tmp_path / "store").iterdir())


class TestGraphs:
    """The archive through which a graph is changed."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        write_home(tmp_path / "home", GraphArrays("g", EdgeArrays(np.array([[0], [1]])), 2))
        return tmp_path / "home"

    def test_it_has_the_handler_and_no_model(self, home: Path, tmp_path: Path) -> None:
        path = pack(GraphPlan(graph_folder=home, settings={"compact_after": 7}), tmp_path)
        assert path == tmp_path / "graph-1.0.mar"
        with zipfile.ZipFile(path) as archive:
            entry = archive.read("entry.py").decode()
            config = yaml.safe_load(archive.read("model-config.yaml"))
            manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))
        assert "GraphHandler" in entry
        assert config["handler"] == {"graph": str(home.resolve()), "compact_after": 7}
        assert (config["minWorkers"], config["maxWorkers"]) == (1, 1)
        assert manifest["model"]["handler"] == "entry.py"
        assert "serializedFile" not in manifest["model"]

    def test_what_a_worker_would_refuse_is_refused(self, home: Path, tmp_path: Path) -> None:
        with pytest.raises(HopserveError, match="compact_afer"):
            pack(GraphPlan(graph_folder=home, settings={"compact_afer": 7}), tmp_path)
        write_snapshot(tmp_path / "bare", GraphArrays("g", EdgeArrays(np.array([[0], [1]])), 2))
        with pytest.raises(HopserveError, match=r"graph\.json"):
            pack(GraphPlan(graph_folder=tmp_path / "bare"), tmp_path)
