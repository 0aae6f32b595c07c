"""Indexes of similar nodes find what brute force finds, and are refused when they are damaged."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from archive.precompute.similar import build_index, check_indexes
from handler.cache.similar import METRICS, Metric, SimilarIndex, index_folder
from handler.cache.table import FORMAT_VERSION, Table, TableManifest, tables_in, written_table
from handler.errors import HopserveError, TableError

DIM = 16
TOP_K = 10


def _table(folder: Path, embedding: NDArray[np.floating[Any]]) -> Table:
    """A table of these embeddings, and of predictions beside them."""
    manifest = TableManifest(
        format_version=FORMAT_VERSION,
        model_name="model",
        model_version="1.0",
        tag="1",
        snapshot_id="1",
        seq=0,
        computed=0.0,
        num_nodes=len(embedding),
        dim=embedding.shape[1] + 2,
    )
    with written_table(folder, manifest) as staging:
        np.save(staging / "output.npy", np.pad(embedding.astype(np.float32), ((0, 0), (0, 2))))
        np.save(staging / "fingerprint.npy", np.ones(len(embedding), dtype=np.uint64))
        np.save(staging / "sampled.npy", np.ones(len(embedding), dtype=np.int32))
    return Table.open(tables_in(folder)[0])


def _recall(folder: Path, embedding: NDArray[np.floating[Any]], metric: Metric) -> float:
    table = _table(folder, embedding)
    build_index(table, metric, embedding.shape[1])
    index = SimilarIndex.open(table.folder, metric)
    asked = np.random.default_rng(1).choice(len(embedding), 200)
    found = index.search(table.output[asked, : embedding.shape[1]], TOP_K)
    rows = embedding.astype(np.float64)
    if metric == "cosine":
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    recalls = []
    for node, candidates in zip(asked, found, strict=True):
        scores = rows @ rows[node]
        best = np.sort(scores[candidates[candidates >= 0]])[::-1][:TOP_K]
        recalls.append((best >= np.sort(scores)[-TOP_K] - 1e-6 * np.abs(scores).max()).sum() / TOP_K)
    return float(np.mean(recalls))


def _clusters(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    centers = rng.normal(size=(20, DIM))
    return centers[rng.integers(0, 20, count)] + 0.1 * rng.normal(size=(count, DIM))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["even", "wide", "cone", "clusters", "twins"])
def test_it_finds_the_nearest(tmp_path: Path, metric: Metric, kind: str) -> None:
    rng = np.random.default_rng(0)
    even = rng.normal(size=(5000, DIM))
    embedding = {
        "even": even,
        "wide": even * rng.lognormal(sigma=2, size=(5000, 1)),  # norms over many orders of magnitude
        "cone": even + 30,  # all in nearly the same direction
        "clusters": _clusters(rng, 5000),
        # Half are equal but for rounding, as nodes without features are.
        "twins": np.concatenate(
            [even[:2500], np.ones((2500, DIM)) * (1 + 1e-7 * rng.normal(size=(2500, DIM)))]
        ),
    }[kind]
    assert _recall(tmp_path, embedding, metric) >= 0.97


@pytest.mark.parametrize("metric", METRICS)
def test_few_nodes_are_all_candidates(tmp_path: Path, metric: Metric) -> None:
    embedding = np.random.default_rng(0).normal(size=(12, 3))
    embedding[3] = 0  # has no direction
    embedding[5] = np.nan
    embedding[7] = embedding[8]
    table = _table(tmp_path, embedding)
    build_index(table, metric, 3)
    found = SimilarIndex.open(table.folder, metric).search(table.output[[0, 3, 7], :3], 2)
    for row in found.tolist():
        assert sorted(node for node in row if node >= 0) == [0, 1, 2, 4, 6, 7, 8, 9, 10, 11]
    assert set(found[2, :2].tolist()) == {7, 8} or metric == "dot"


@pytest.mark.parametrize("metric", METRICS)
def test_nothing_is_found_among_nothing(tmp_path: Path, metric: Metric) -> None:
    table = _table(tmp_path, np.zeros((4, 3)))
    build_index(table, metric, 3)
    assert (SimilarIndex.open(table.folder, metric).search(np.ones((2, 3), np.float32), 1) == -1).all()


def test_a_search_does_not_depend_on_its_company(tmp_path: Path) -> None:
    embedding = np.random.default_rng(0).normal(size=(3000, DIM)).astype(np.float32)
    embedding *= np.random.default_rng(1).lognormal(size=(3000, 1)).astype(np.float32)
    table = _table(tmp_path, embedding)
    build_index(table, "dot", DIM)
    index = SimilarIndex.open(table.folder, "dot")
    together = index.search(embedding[:50], 5)
    for node in range(50):
        assert np.array_equal(index.search(embedding[node : node + 1], 5)[0], together[node])


def test_it_is_replaced_while_it_is_in_use(tmp_path: Path) -> None:
    embedding = np.random.default_rng(0).normal(size=(500, DIM)).astype(np.float32)
    table = _table(tmp_path, embedding)
    build_index(table, "cosine", DIM)
    index = SimilarIndex.open(table.folder, "cosine")
    before = index.search(embedding[:5], 3)
    build_index(table, "cosine", DIM)
    assert np.array_equal(index.search(embedding[:5], 3), before)
    assert [path.name for path in table.folder.glob(".*")] == []


@pytest.mark.parametrize("name", ["index.json", "range-0.usearch", "start.npy", "node.npy"])
@pytest.mark.parametrize("harm", ["missing", "truncated", "changed"])
def test_a_damaged_index_is_refused(tmp_path: Path, name: str, harm: str) -> None:
    table = _table(tmp_path, np.random.default_rng(0).normal(size=(50, DIM)))
    path = build_index(table, "cosine", DIM) / name
    content = bytearray(path.read_bytes())
    if harm == "missing":
        path.unlink()
    else:
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content[: len(content) // 2] if harm == "truncated" else content)
    with pytest.raises(TableError, match=name if harm != "missing" else "similar-cosine"):
        SimilarIndex.open(table.folder, "cosine")


def test_an_index_of_another_metric_or_format_is_refused(tmp_path: Path) -> None:
    table = _table(tmp_path, np.random.default_rng(0).normal(size=(50, DIM)))
    manifest = build_index(table, "cosine", DIM) / "index.json"
    text = manifest.read_text()
    index_folder(table.folder, "cosine").rename(index_folder(table.folder, "dot"))
    with pytest.raises(TableError, match="is of the metric cosine"):
        SimilarIndex.open(table.folder, "dot")
    (index_folder(table.folder, "dot") / "index.json").write_text(
        text.replace('"format_version": 1', '"format_version": 9').replace("cosine", "dot")
    )
    with pytest.raises(TableError, match="format_version is 9"):
        SimilarIndex.open(table.folder, "dot")


def test_what_lacks_the_package_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = _table(tmp_path, np.random.default_rng(0).normal(size=(50, DIM)))
    build_index(table, "cosine", DIM)
    imported = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("usearch"):
            raise ImportError(name)
        return imported(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TableError, match=r"pip install 'hopserve\[similar\]'"):
        SimilarIndex.open(table.folder, "cosine")
    monkeypatch.setattr("archive.precompute.similar.find_spec", lambda name: None)
    check_indexes([])
    with pytest.raises(HopserveError, match="--index none"):
        check_indexes(["cosine"])
