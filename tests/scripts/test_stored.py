"""`hopserve precompute`, `cache` and `policy`: what they say, and what they refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from archive.pack import PackPlan, pack
from handler.errors import HopserveError
from handler.keeping import open_store
from handler.metrics import Counters
from handler.settings import Settings
from scripts.cli.main import hopserve
from tests.conftest import Example


@pytest.fixture(scope="module")
def packed(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of two versions of the example, and a graph of their own."""
    folder = tmp_path_factory.mktemp("packed")
    shutil.copytree(example.graph, folder / "graph")
    stages = [{"until_h": 24, "method": "features"}]
    for version in ("1.0", "1.1"):
        plan = PackPlan(
            "m",
            version,
            model_folder=example.export,
            graph_folder=folder / "graph",
            settings={"cold_start": stages},
        )
        pack(plan, folder / "store")
    return folder


@pytest.fixture
def store(packed: Path) -> Path:
    """The store, of which nothing is kept yet."""
    shutil.rmtree(packed / "graph" / "embeddings", ignore_errors=True)
    return packed / "store"


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(hopserve, [*map(str, arguments)])


def _explained(store: Path, node: int) -> dict[str, object]:
    result = _run("policy", "explain", node, "--model", "m", "--model-version", "1.0", "--store", store)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_a_node_is_explained_before_and_after_it_is_precomputed(store: Path) -> None:
    explained = _explained(store, 42)
    assert (explained["source"], explained["stage"], explained["created"]) == ("live", "old", None)
    assert "it has no creation time" in str(explained["why"])
    result = _run("precompute", "m", "--model-version", "1.0", "--store", store, "--chunk-nodes", 500)
    assert result.exit_code == 0, result.output
    assert "all nodes are precomputed for m 1.0" in result.stdout
    explained = _explained(store, 42)
    assert explained["source"] == "precomputed"
    assert "its row in the table is proven to hold" in str(explained["why"])
    assert (
        _run("policy", "explain", 42, "--model", "m", "--model-version", "1.1", "--store", store).exit_code
        == 0
    )


def test_a_table_that_is_there_is_only_given_the_indexes_that_it_lacks(store: Path, packed: Path) -> None:
    precompute = ("precompute", "m", "--model-version", "1.1", "--store", store)
    table = packed / "graph" / "embeddings" / "m" / "1.1" / "table-0"

    def indexes() -> dict[str, int]:
        return {folder.name: folder.stat().st_ino for folder in table.glob("similar-*")}

    assert "computes it anew" not in _run(*precompute, "--index", "none").output
    assert indexes() == {}
    stamp = table.stat().st_ino
    (table / ".similar-cosine-killed").mkdir()
    result = _run(*precompute)
    assert "is of this snapshot and model; --restart computes it anew" in result.output
    first = indexes()
    assert list(first) == ["similar-cosine"]
    assert not (table / ".similar-cosine-killed").exists()
    _run(*precompute, "--index", "cosine", "--index", "dot")
    assert indexes() == first | {"similar-dot": indexes()["similar-dot"]}
    assert table.stat().st_ino == stamp
    _run(*precompute, "--restart")
    assert table.stat().st_ino != stamp
    assert list(indexes()) == ["similar-cosine"]


def test_a_cache_is_shown_and_cleared_by_version(store: Path, example: Example) -> None:
    result = _run("cache", "stats", "--model", "m", "--store", store)
    assert isinstance(result.exception, HopserveError)  # no worker has made one yet
    assert _explained(store, 1)["source"] == "live"  # which opens it
    for version in (None, "1.0"):
        only = () if version is None else ("--version", version)
        assert json.loads(_run("cache", "stats", "--model", "m", "--store", store, *only).stdout) == []
        cleared = _run("cache", "clear", "--model", "m", "--store", store, *only)
        assert cleared.stdout == "m: 0 answers removed\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("precompute", "m"), "say which version of m is meant; there are: 1.0, 1.1"),
        (("precompute", "m", "--model-version", "9"), "has no m-9.mar; versions of m there: 1.0, 1.1"),
        (("policy", "explain", "x", "--model", "m", "--model-version", "1.0"), "the graph has no node 'x'"),
        (
            ("policy", "explain", "9999", "--model", "m", "--model-version", "1.0"),
            "the graph has no node 9999",
        ),
        (("cache", "stats", "--model", "nobody"), "has no"),
    ],
)
def test_what_is_wrong_is_said(store: Path, arguments: tuple[str, ...], said: str) -> None:
    result = _run(*arguments, "--store", store)
    assert isinstance(result.exception, HopserveError)
    assert said in str(result.exception)


@pytest.mark.parametrize("shard", ["4/4", "1", "a/b", "-1/2"])
def test_a_shard_is_one_of_several(store: Path, shard: str) -> None:
    result = _run("precompute", "m", "--store", store, "--shard", shard)
    assert result.exit_code == 2
    assert "is not one of several shards" in result.output


def test_a_cache_that_cannot_be_opened_is_done_without(example: Example, tmp_path: Path) -> None:
    from handler.model.signature import read_signature

    settings = Settings(graph=str(example.graph), cache="memcached://here", embeddings=str(tmp_path))
    opened = open_store(settings, read_signature(example.export), "m", "1.0", Counters())
    assert opened.cache is None
    opened.close()
