"""The edge: TorchServe's rows and contexts in, status and bytes out."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from ts.context import Context, RequestProcessor
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

from handler import headers as hopserve_headers
from handler import torchserve
from handler.entry import Handler
from handler.graph.holding import claim
from handler.service import Service
from handler.settings import Settings
from handler.torchserve import GRAPH_VARIABLE, _device, _threads_per_worker
from tests.conftest import Example

METRICS_FILE = Path(__file__).parents[2] / "deploy" / "metrics.yaml"
JSON_HEADERS = {"Content-Type": "application/json", "explain": "False"}


def _context(example: Example, **changes: Any) -> Context:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # TorchServe leaves the file open
        metrics = MetricsCacheYamlImpl(str(METRICS_FILE))
    metrics.initialize_cache()
    config = {"handler": {"graph": str(example.graph)}} | changes
    manifest = {"model": {"modelVersion": "3.1"}}
    return Context("graphsage", str(example.export), manifest, 2, None, "0.12.0", True, metrics, config)


def _ask(
    handler: Handler, context: Context, *rows: dict[str, Any], headers: dict[str, Any] | None = None
) -> list[tuple[int, Any]]:
    """Status and JSON of each row."""
    context.request_processor = [RequestProcessor(dict(headers or JSON_HEADERS)) for _ in rows]
    bodies = handler.handle(list(rows), context)
    return [(context.get_response_status(i)[0], json.loads(body)) for i, body in enumerate(bodies)]


def test_a_worker_holds_the_graph_it_serves(example: Example, tmp_path: Path) -> None:
    shutil.copytree(example.graph, tmp_path / "graph")
    handler = Handler()
    handler.initialize(_context(example, handler={"graph": str(tmp_path / "graph"), "warm_up": False}))
    assert claim(tmp_path / "graph") is None


def test_a_worker_warms_up_when_it_is_its_turn(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that of workers that start together one compiles, and the others load what it has compiled."""
    steps = []

    @contextmanager
    def turn() -> Iterator[None]:
        steps.append("begins")
        yield
        steps.append("ends")

    monkeypatch.setattr(torchserve, "one_goes_first", turn)
    monkeypatch.setattr(Service, "__init__", lambda *parts: steps.append("opens"))
    monkeypatch.setattr(Service, "warm_up", lambda *sizes: steps.append("warms up"))
    Handler().initialize(_context(example))
    assert steps == ["begins", "opens", "warms up", "ends"]


@pytest.fixture(scope="module")
def served(example: Example) -> tuple[Handler, Context]:
    handler, context = Handler(), _context(example)
    handler.initialize(context)
    torch.set_num_threads(1)
    return handler, context


@pytest.mark.parametrize(
    "row",
    [
        {"body": b'{"node_id": 7}'},
        {"body": bytearray(b'{"node_id": 7}')},
        {"body": {"node_id": 7}},
        {"body": '{"node_id": 7}'},
        {"data": b'{"node_id": 7}'},
        {"whatever": b'{"node_id": 7}'},
    ],
)
def test_a_body_comes_in_any_form(served: tuple[Handler, Context], row: dict[str, Any]) -> None:
    ((status, answer),) = _ask(*served, row)
    assert (status, answer["node_id"], answer["model_version"]) == (200, 7, "3.1")


@pytest.mark.parametrize(
    ("row", "headers", "problem"),
    [
        ({}, None, "has no body"),
        ({"body": b""}, None, "has no body"),
        ({"body": b'{"node_id": 7}', "colour": b"1"}, None, "query parameters or several parts"),
        ({"body": b'{"node_id": 7}'}, {"describe": "True"}, "this model does not describe"),
        ({"body": b'{"node_id": 7, "return": ["label"]}'}, {"Explain": "True"}, "unknown field `return`"),
        ({}, {"content-type": "application/x-www-form-urlencoded"}, "send JSON, as Content-Type"),
        ({"body": b'{"node_id": 7}'}, {"CONTENT-TYPE": "image/png"}, "the content type is 'image/png'"),
        ({"body": {"node_id": float("nan")}}, None, "Expected `int | str`, got `null`"),
        ({"body": '{"node_id": "\ud800"}'}, None, "cannot be read"),
        ({"body": {"node_id": "\ud800"}}, None, "cannot be read"),
        ({"body": {"node_id": 10**30}}, None, "Expected `int` <= 9223372036854775807"),
    ],
)
def test_what_is_no_json_is_refused_alone(
    served: tuple[Handler, Context], row: dict[str, Any], headers: dict[str, Any] | None, problem: str
) -> None:
    handler, context = served
    context.request_processor = [RequestProcessor(dict(h)) for h in (JSON_HEADERS, headers or JSON_HEADERS)]
    good, bad = handler.handle([{"body": b'{"node_id": 7}'}, row], context)
    assert json.loads(good)["node_id"] == 7
    assert context.get_response_status(0)[0] == 200
    assert context.get_response_status(1)[0] == 400
    assert problem in json.loads(bad)["error"]["message"]


def test_explanations_and_predictions_may_come_in_one_batch(served: tuple[Handler, Context]) -> None:
    handler, context = served
    asked = [{}, {"explain": "True"}, {}, {"explain": "True"}, {hopserve_headers.PROBE: "1"}]
    context.request_processor = [RequestProcessor(JSON_HEADERS | each) for each in asked]
    bodies = [b'{"node_id": 7}', b'{"node_id": 7}', b"{", b'{"node_id": -1}', b""]
    answers = [json.loads(each) for each in handler.handle([{"body": body} for body in bodies], context)]
    assert [context.get_response_status(row)[0] for row in range(5)] == [200, 200, 400, 404, 200]
    assert answers[0]["embedding"]
    assert answers[1]["explained"] == {"label": answers[0]["label"]}
    assert len(answers[1]["edges"]) == 20
    assert answers[4] == {}


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "application/ld+json", "TEXT/JSON", ""]
)
def test_any_json_content_type_will_do(served: tuple[Handler, Context], media_type: str) -> None:
    ((status, _),) = _ask(*served, {"body": b'{"node_id": 7}'}, headers={"Content-Type": media_type})
    assert status == 200


def test_answers_are_typed_and_signed(served: tuple[Handler, Context]) -> None:
    handler, context = served
    _ask(handler, context, {"body": b'{"node_id": 7}'}, {"body": b"{"})
    for position, phrase in enumerate(["OK", "Bad Request"]):
        assert context.get_response_content_type(position) == "application/json"
        assert context.get_response_headers(position)[hopserve_headers.WORKER].isdigit()
        assert context.get_response_status(position)[1] == phrase


def test_a_probe_asks_nothing_and_is_counted_nowhere(
    served: tuple[Handler, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, context = served
    asked: list[int] = []
    assert handler._service is not None
    answer = handler._service.answer

    def counted(bodies: list[Any]) -> Any:
        asked.append(len(bodies))
        return answer(bodies)

    monkeypatch.setattr(handler._service, "answer", counted)
    rows = [{"body": b'{"node_id": 7}'}, {}, {"body": b'{"node_id": 8}'}]
    context.request_processor = [
        RequestProcessor(JSON_HEADERS | ({"X-Hopserve-Probe": "1"} if not row else {})) for row in rows
    ]
    bodies = [json.loads(body) for body in handler.handle(rows, context)]
    assert (bodies[0]["node_id"], bodies[1], bodies[2]["node_id"]) == (7, {}, 8)
    assert asked == [2]
    assert [context.get_response_status(position)[0] for position in range(3)] == [200, 200, 200]
    assert all(context.get_response_headers(position)[hopserve_headers.WORKER] for position in range(3))


def test_the_environment_may_move_the_graph(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GRAPH_VARIABLE, str(example.graph))
    Handler().initialize(_context(example, handler={"graph": "/nowhere"}))


def test_what_cannot_be_served_stops_the_worker_with_one_message(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(example.graph, broken)
    (broken / "indices.npy").write_bytes(b"junk")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"handler": None}, "model-config.yaml has no section `handler`"),
        ({"handler": {"graph": str(broken)}}, "indices.npy: truncated or not a .npy file"),
        ({"handler": {"graph": "/nowhere"}}, "/nowhere/manifest.json: missing"),
        ({"handler": {"graph": str(example.graph), "devise": 1}}, "unknown field `devise`"),
    ]
    if not torch.cuda.is_available():
        cases.append(
            ({"handler": {"graph": str(example.graph), "device": "cuda"}}, "PyTorch finds no GPU here")
        )
    for change, problem in cases:
        with pytest.raises(RuntimeError, match="hopserve: cannot serve graphsage: ") as caught:
            Handler().initialize(_context(example, **change))
        assert problem in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "gpu_id", "has_gpu", "device"),
    [
        ("auto", None, False, "cpu"),
        ("auto", None, True, "cpu"),
        ("auto", 1, True, "cuda:1"),
        ("auto", 1, False, "cpu"),
        ("cpu", 1, True, "cpu"),
        ("cuda", None, True, "cuda:0"),
    ],
)
def test_the_device_is_torchserves_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, wanted: Any, gpu_id: int | None, has_gpu: bool, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert _device(Settings(graph="", device=wanted), gpu_id) == torch.device(device)


@pytest.mark.parametrize(
    ("cores", "config", "threads"),
    [(1, {}, 1), (2, {"maxWorkers": 2}, 1), (16, {"maxWorkers": 3}, 5), (8, {"minWorkers": 1}, 7)],
)
def test_workers_share_the_cores_but_one(
    monkeypatch: pytest.MonkeyPatch, cores: int, config: dict[str, Any], threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert _threads_per_worker(config) == threads


def test_a_failure_that_nobody_foresaw_is_one_line_too(
    example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(place: str, **_: object) -> None:
        raise MemoryError("no room\nfor it")

    monkeypatch.setattr("handler.torchserve.source_of", fail)
    with pytest.raises(RuntimeError) as caught:
        Handler().initialize(_context(example))
    assert str(caught.value) == "hopserve: cannot serve graphsage: MemoryError: no room for it"


def test_counters_reach_torchserve(
    example: Example, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setattr("handler.torchserve._METRICS_PERIOD_S", 0.01)
    handler, context = Handler(), _context(example)
    handler.initialize(context)
    with caplog.at_level("INFO", logger="ts.metrics.caching_metric"):
        _ask(handler, context, {"body": b'{"node_id": 7, "max_staleness_ms": 0}'})
        handler._afterwards.catch_up()  # as when TorchServe's next message is waited for
        deadline = time.monotonic() + 10
        while "hopserve_nodes_total" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.01)
    line = next(r.message for r in caplog.records if "hopserve_nodes_total" in r.message)
    assert "hopserve_nodes_total.Count:1.0" in line
    assert "source:live,model_name:graphsage,model_version:3.1" in line


def test_traced_requests_are_told_of_with_their_stages(
    served: tuple[Handler, Context], caplog: pytest.LogCaptureFixture
) -> None:
    sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with caplog.at_level("INFO", logger="handler.tracing"):
        for traceparent in (sampled, sampled[:-1] + "0", "nonsense", ""):
            sent = JSON_HEADERS | {"Traceparent": traceparent, "X-Request-Id": "abc"}
            _ask(*served, {"body": b'{"node_id": 0}'}, {"body": b'{"node_id": -1}'}, headers=sent)
    records = [record for record in caplog.records if record.name == "handler.tracing"]
    told = [json.loads(record.message.removeprefix("hopserve trace ")) for record in records]
    assert [(row["request_id"], row["traceparent"], row["status"]) for row in told] == [
        ("abc", sampled, 200),
        ("abc", sampled, 404),
    ]
    assert {row["batch_size"] for row in told} == {2}
    assert {"parse", "sample", "forward", "encode"} <= told[0]["stages_us"].keys()
    assert min(told[0]["stages_us"].values()) >= 0
