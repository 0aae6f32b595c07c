"""A degraded answer is what a worker would write of the same row of the table, and says that it is one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.degraded import scores
from gateway.degraded.answering import DegradedAnswers
from handler.cache.table import tables_in
from handler.model.signature import Signature
from tests.gateway.degraded.version import ANY_AGE, Version, undated
from tests.graphs import SmallGraph, small_graphs
from tests.keeping import MODEL
from tests.models import random_model
from tests.served import CPU

LABELLESS = random_model((3, 2), labels=())[0]
_RETURN = ["embedding", "label", "probabilities"]


@pytest.fixture
def version(tmp_path: Path) -> Version:
    version = Version(tmp_path)
    version.precompute(computed=time.time() - 60)
    return version


def _stored(request: dict[str, Any]) -> dict[str, Any]:
    """The request that lets a worker answer from the table without a proof."""
    if "instances" in request:
        rows = [
            {"max_staleness_ms": ANY_AGE, **row} if isinstance(row, dict) else row
            for row in request["instances"]
        ]
        return {"instances": rows}
    return {"max_staleness_ms": ANY_AGE, **request}


def _rows(answer: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = answer.get("predictions", [answer])
    return [row for row in rows if "error" not in row]


def _same(version: Version, *requests: dict[str, Any]) -> None:
    """That degraded answers to requests are those of a worker that uses the table."""
    worker = version.worker(*[_stored(request) for request in requests])
    for request, (status, wanted) in zip(requests, worker, strict=True):
        found = version.ask(request)
        assert (found[0], undated(found[1])) == (status, undated(wanted)), request
        for row, right in zip(_rows(found[1]), _rows(wanted), strict=True):
            assert right["source"] == "precomputed"
            assert row["degraded"] is True
            assert 0 <= row["age_ms"] - right["age_ms"] < 60_000
            assert row["age_ms"] >= 60_000


def _refused(version: Version, request: object) -> str:
    """That nothing is answered for now; returns why."""
    answer = version.degraded(request)
    assert answer.status == 503
    assert answer.headers == {"x-hopserve-degraded": "unavailable", "retry-after": "1"}
    error = json.loads(answer.body)["error"]
    assert error["code"] == "degraded"
    return str(error["message"])


def test_answers_are_those_that_a_worker_gives_from_the_same_table(version: Version) -> None:
    _same(
        version,
        {"node_id": 3},
        {"node_id": 3, "return": _RETURN, "threshold": 0.9},
        {"node_ids": [5, 0, 0, 4], "return": ["probabilities"], "threshold": 0.0},
        {"node_ids": [1], "num_hops": 2},
        {"instances": [{"node_id": 1}, {"node_id": 2, "return": ["embedding"]}, {"node": 3}, 4, {}]},
        {"node_ids": [1, None, 2.5, "one", True, 2**70, 3]},
        {"node_id": 1, "max_staleness_ms": ANY_AGE},
    )


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(small_graphs(), st.sampled_from([MODEL, LABELLESS]), st.booleans(), st.data())
def test_answers_are_those_of_a_worker_on_any_graph(
    graph: SmallGraph, config: Any, home: bool, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        version = Version(Path(folder), graph, config, home)
        version.precompute(computed=time.time() - 60)
        asked = data.draw(st.lists(st.sampled_from(graph.ids), min_size=1, max_size=8))
        _same(version, {"node_id": asked[0]}, {"node_ids": asked})


def test_an_answer_names_what_it_is_of(version: Version) -> None:
    answer = version.degraded({"node_id": 3})
    assert answer.headers == {"x-hopserve-degraded": "precomputed"}
    row = json.loads(answer.body)
    snapshot = version.last.find("sage", "1.0").table.manifest.snapshot_id  # type: ignore[union-attr]
    assert row["graph"] == {"snapshot": snapshot, "seq": 0}
    assert (row["source"], row["degraded"], row["model_version"]) == ("precomputed", True, "1.0")
    assert 60_000 <= row["age_ms"] < 120_000


_BEYOND_A_TABLE: list[dict[str, Any]] = [
    {"num_hops": 1},
    {"num_neighbors": 1},
    {"as_of": 5.0},
    {"top_k": 2},
    {"return": ["neighbors"]},
    {"return": ["embedding", "neighbors"]},
    {"min_seq": 1},
    {"max_staleness_ms": 0},
    {"max_staleness_ms": 59_000},
]


@pytest.mark.parametrize("options", _BEYOND_A_TABLE)
def test_what_only_a_model_can_say_is_refused_for_now(version: Version, options: dict[str, Any]) -> None:
    _refused(version, {"node_id": 3, **options})
    _refused(version, {"node_ids": [3, 4], **options})
    status, answer = version.ask({"instances": [{"node_id": 3, **options}, {"node_id": 3}]})
    assert status == 200
    refused, given = answer["predictions"]
    assert (refused["node_id"], refused["error"]["code"]) == (3, "degraded")
    assert given["degraded"] is True


def test_what_a_table_can_say_is_said_however_it_is_asked(version: Version) -> None:
    assert version.ask({"node_id": 3, "num_hops": 2, "num_neighbors": 3})[0] == 200  # as the model samples
    assert version.ask({"node_id": 3, "min_seq": 0})[0] == 200
    assert version.ask({"node_id": 3, "max_staleness_ms": 200_000})[0] == 200


def test_described_nodes_are_refused_for_now(version: Version) -> None:
    _refused(version, {"node": {"x": [1, 2, 3], "neighbors": [1]}})
    _refused(version, {"node": {"node_id": 99, "neighbors": [1]}, "store": True})
    _refused(version, {"instances": [{"node": {"node_id": 3}}]})
    status, answer = version.ask({"instances": [{"node": {"node_id": 3}}, {"node_id": 3}]})
    assert status == 200
    assert [("error" in row, row["node_id"]) for row in answer["predictions"]] == [(True, 3), (False, 3)]


def test_a_version_that_always_asks_its_model_gives_nothing_else(tmp_path: Path) -> None:
    version = Version(tmp_path, settings={"max_staleness_ms": 0})
    version.precompute()
    _refused(version, {"node_id": 3})
    assert version.ask({"node_id": 3, "max_staleness_ms": ANY_AGE})[0] == 200


def test_nodes_that_may_have_come_since_are_refused_for_now(version: Version) -> None:
    _refused(version, {"node_id": 6})
    status, answer = version.ask({"node_ids": [6, -1, 2]})
    assert status == 200
    assert [row.get("error", {}).get("code") for row in answer["predictions"]] == ["degraded"] * 2 + [None]


def test_a_graph_that_does_not_change_has_no_other_nodes(tmp_path: Path) -> None:
    version = Version(tmp_path, home=False)
    version.precompute(computed=time.time() - 60)
    _same(version, {"node_id": 6}, {"node_ids": [6, 2]}, {"node_ids": [6, 7]}, {"node_ids": [None]})
    answer = version.degraded({"node_id": 6})
    assert (answer.status, answer.headers) == (404, {})


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_rows_that_do_not_count_are_refused_for_now(version: Version, value: float) -> None:
    (folder,) = tables_in(version.tables)
    name = "output" if value else "fingerprint"
    array = np.load(folder / f"{name}.npy")
    array[3] = value
    _replace_array(folder, name, array)
    _refused(version, {"node_id": 3})
    rows = version.ask({"node_ids": [3, 4, 3]})[1]["predictions"]
    assert ["error" in row for row in rows] == [True, False, True]


def _replace_array(folder: Path, name: str, array: Any) -> None:
    """Put an array into a table as if it were computed so."""
    from handler.cache.table import TableManifest, written_table

    manifest = msgspec.json.decode((folder / "table.json").read_bytes(), type=TableManifest)
    files = {path.name: path.read_bytes() for path in folder.glob("*.npy")}
    with written_table(folder.parent, manifest) as staging:
        for file, content in files.items():
            (staging / file).write_bytes(content)
        np.save(staging / f"{name}.npy", array)


_MALFORMED: list[object] = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 5000,
    b'{"node_id": NaN}',
    b'{"node_id": 1, "max_staleness_ms": NaN}',
    b'{"node_id": "\\ud800"}',
    b'{"node_id": 1}x',
    [],
    None,
    {},
    {"node_id": None},
    {"node_id": 2**63},
    {"node_id": 1.5},
    {"node_id": True},
    {"node_id": "three"},
    {"node_id": 1, "node_ids": [1]},
    {"node_id": 1, "threshold": 2},
    {"node_id": 1, "max_staleness_ms": -1},
    {"node_id": 1, "return": ["values"]},
    {"node_id": 1, "return": "embedding"},
    {"node_id": 1, "num_hops": 3},
    {"node_id": 1, "num_neighbors": 99},
    {"node_id": 1, "colour": "red"},
    {"node_ids": []},
    {"node_ids": {}},
    {"node_ids": [1] * 2049},
    {"node_ids": list(range(50_000))},
    {"instances": []},
    {"instances": [{"node_id": 1}] * 2049},
    {"pairs": []},
    {"pairs": [[1, 2]]},
    {"node": {"x": "a"}},
    {"node": {}, "store": True},
    {"node_id": 1, "top_k": 2000},
]


def test_what_is_wrong_is_said_as_a_worker_says_it(version: Version) -> None:
    for request, (status, answer) in zip(_MALFORMED, version.worker(*_MALFORMED), strict=True):
        assert 400 <= status < 500, request
        found = version.degraded(request)
        assert (found.status, json.loads(found.body), found.headers) == (status, answer, {}), request


def test_a_list_of_which_every_row_is_wrong_is_answered_as_a_worker_does(version: Version) -> None:
    request = {"node_ids": [None, "one"]}
    ((status, answer),) = version.worker(request)
    found = version.degraded(request)
    assert (found.status, json.loads(found.body), found.headers) == (status, answer, {})


def test_what_is_too_large_is_refused_as_a_worker_does(tmp_path: Path) -> None:
    version = Version(tmp_path, settings={"max_response_bytes": 300, "max_nodes_per_request": 4})
    version.precompute()
    for request in ({"node_ids": [1, 2, 3]}, {"node_ids": [1] * 5}):
        ((status, answer),) = version.worker(request)
        assert status == 413
        found = version.degraded(request)
        assert (found.status, found.headers) == (413, {})
        assert json.loads(found.body)["error"]["code"] == answer["error"]["code"]


def test_as_many_nodes_as_a_request_may_name_are_answered(version: Version) -> None:
    status, answer = version.ask({"node_ids": [2] * 2048})
    assert (status, len(answer["predictions"])) == (200, 2048)


def test_a_table_that_is_replaced_counts_at_once(version: Version) -> None:
    age_ms = version.ask({"node_id": 3})[1]["age_ms"]
    version.precompute()
    assert version.ask({"node_id": 3})[1]["age_ms"] < age_ms


def test_without_a_table_only_what_is_wrong_is_said(tmp_path: Path) -> None:
    version = Version(tmp_path, settings={"max_nodes_per_request": 4})
    assert "no table" in _refused(version, {"node_id": 3})
    _refused(version, {"node_ids": [3, 4]})
    assert version.ask({"node_ids": [1] * 5})[0] == 413
    assert version.ask(b"{")[0] == 400
    other = DegradedAnswers(version.last)
    assert other.answer("none", "1.0", b'{"node_id": 1}').status == 503
    assert other.answer("none", "1.0", b"{").status == 400


def test_a_probe_is_told_that_no_worker_is_there(version: Version) -> None:
    answer = DegradedAnswers(version.last).health("sage", "1.0")
    assert answer.status == 503
    assert "precomputed" in json.loads(answer.body)["error"]["message"]


def _linking(folder: Path, kind: str) -> Version:
    """A version that scores pairs: its signature says so, and its file need not know."""
    version = Version(folder, config=LABELLESS)
    signature = msgspec.structs.replace(version.model.signature, task="link", link_score=kind)
    version.model = type(version.model)(signature, version.model._runtime, CPU)
    version.pack()
    version.precompute(computed=time.time() - 60)
    return version


@pytest.mark.parametrize("kind", ["dot", "cosine"])
def test_pairs_are_scored_as_workers_score_them(tmp_path: Path, kind: str) -> None:
    version = _linking(tmp_path, kind)
    requests: list[dict[str, Any]] = [
        {"pairs": [[1, 2], [2, 1], [3, 3]]},
        {"pairs": [[1, 2], [1], "ab", [None, 2], [1, "b"]]},
        {"pairs": [[1, 2]], "return": ["score", "probability"]},
        {"pairs": [[1, None]]},
    ]
    for request, (status, wanted) in zip(
        requests, version.worker(*[_stored(r) for r in requests]), strict=True
    ):
        found, answer = version.ask(request)
        assert found == status
        if status != 200:
            assert answer == wanted
            continue
        for row, right in zip(answer["predictions"], wanted["predictions"], strict=True):
            for name in ("score", "probability"):
                assert row.pop(name, 0.0) == pytest.approx(right.pop(name, 0.0), rel=1e-5, abs=1e-6)
            assert undated(row) == undated(right)
    _refused(version, {"pairs": [[1, 9]]})
    _refused(version, {"pairs": [[9, 1]]})
    _refused(version, {"pairs": [[1, 2]], "num_hops": 1})
    rows = version.ask({"pairs": [[1, 2], [9, 1]]})[1]["predictions"]
    assert (rows[0]["degraded"], rows[1]["pair"], rows[1]["error"]["code"]) == (True, [9, 1], "degraded")


def test_pairs_that_need_a_head_are_refused_for_now(tmp_path: Path) -> None:
    version = _linking(tmp_path, "head")
    assert "only the model" in _refused(version, {"pairs": [[1, 2]]})
    assert version.ask({"node_id": 1})[0] == 200


def test_a_score_that_is_not_finite_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = _linking(tmp_path, "dot")
    monkeypatch.setattr(
        "gateway.degraded.answering.simple_scores", lambda kind, source, target: np.array([np.inf])
    )
    _refused(version, {"pairs": [[1, 2]]})


def test_no_direction_has_no_cosine() -> None:
    zero, one = np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)
    assert scores.simple_scores("cosine", zero, one).tolist() == [0.0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["node_id", "node_ids", "node", "instances", "pairs", "return", "top_k", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Version:
    version = Version(tmp_path_factory.mktemp("shared"))
    version.precompute()
    return version


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(JSON.map(json.dumps).map(str.encode), st.binary(max_size=20)))
def test_rubbish_is_answered_with_json_and_a_status(shared: Version, body: bytes) -> None:
    answer = shared.degraded(body)
    json.loads(answer.body)
    assert answer.status in {200, 400, 413, 503}


def test_the_signature_of_the_archive_is_what_counts(version: Version) -> None:
    archive = version.last.find("sage", "1.0").archive
    assert archive is not None
    assert isinstance(archive.signature, Signature)
    assert archive.signature == version.model.signature
