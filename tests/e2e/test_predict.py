"""What an application developer sees, over REST and gRPC."""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import ts

from gateway.tuning.load import Sent, send_all
from tests.conftest import Example
from tests.servers import Server

JSON = {"Content-Type": "application/json"}


def _close(found: Any, wanted: Any) -> bool:
    found, wanted = np.asarray(found), np.asarray(wanted)
    return bool(np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max())


QUESTION = {"node_id": 42, "max_staleness_ms": 0}  # not what was stored before


def test_the_quickstarts_question_is_answered(server: Server) -> None:
    response = server.ask(QUESTION)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert answer["label"] == "1"
    assert len(answer["embedding"]) == 64
    assert (answer["source"], answer["model_version"]) == ("live", "1.0")


def test_the_three_forms_agree(server: Server) -> None:
    nodes = [0, 1, 1796]
    single = [server.ask({"node_id": node}).json() for node in nodes]
    many = server.ask({"node_ids": nodes}).json()["predictions"]
    kserve = server.ask({"instances": [{"node_id": node} for node in nodes]}).json()["predictions"]
    for one, row, instance in zip(single, many, kserve, strict=True):
        assert one["label"] == row["label"] == instance["label"]
        assert _close(row["embedding"], one["embedding"])
        assert _close(instance["embedding"], one["embedding"])


def test_an_answer_can_be_asked_by_version(server: Server) -> None:
    assert server.ask(QUESTION, version="1.0").json() == server.ask(QUESTION).json()
    assert server.ask({"node_id": 42}, version="9.9").status_code == 404


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b'{"node_id": 1797}', JSON, 404, "unknown_node"),
        (b'{"node_id": "42"}', JSON, 400, "malformed"),
        (b'{"node_id": ', JSON, 400, "malformed"),
        (b'{"node_id": NaN}', JSON, 400, "malformed"),
        (b'{"node_ids": []}', JSON, 400, "malformed"),
        (b"[]", JSON, 400, "malformed"),
        (b"\xff\x00", JSON, 400, "malformed"),
        (json.dumps({"node_ids": list(range(2049))}).encode(), JSON, 413, "too_many_nodes"),
        (b'{"node_id": 42}', {"Content-Type": "application/x-www-form-urlencoded"}, 400, "malformed"),
        (b'{"node_id": 42}', {"Content-Type": "text/plain"}, 400, "malformed"),
        (b'{"node_id": 42}', {"Content-Type": "image/png"}, 400, "malformed"),
        (b'{"node_id": 42}', JSON | {"describe": "True"}, 400, "malformed"),
    ],
)
def test_a_bad_request_has_its_own_status(
    server: Server, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    response = httpx.post(server.url(), content=body, headers=server.headers() | headers)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_a_header_that_torchserve_overwrites_changes_nothing_and_another_explains(server: Server) -> None:
    for name, wanted in (("explain", "embedding"), ("Explain", "explained")):
        headers = server.headers() | {name: "True"}
        assert wanted in httpx.post(server.url(), json={"node_id": 42}, headers=headers).json()


def test_a_request_without_a_body_is_refused(server: Server) -> None:
    for method in ("GET", "POST"):
        response = httpx.request(method, server.url(), headers=server.headers())
        assert response.status_code == 400
        assert "no body" in response.json()["error"]["message"]


def test_any_json_content_type_or_none_will_do(server: Server) -> None:
    for media_type in ("application/json; charset=utf-8", "application/vnd.kserve+json", None):
        headers = server.headers() | ({"Content-Type": media_type} if media_type else {})
        response = httpx.post(server.url(), content=b'{"node_id": 42}', headers=headers)
        assert response.status_code == 200, media_type


def test_a_request_without_a_key_is_refused(server: Server) -> None:
    assert httpx.post(server.url(), json={"node_id": 42}).status_code == 400
    assert (
        httpx.post(server.url(), json={"node_id": 42}, headers={"Authorization": "Bearer x"}).status_code
        == 400
    )


def test_the_longest_list_can_be_sent(server: Server) -> None:
    response = server.ask({"node_ids": [node % 1797 for node in range(2048)]})
    assert response.status_code == 200
    assert len(response.json()["predictions"]) == 2048


def test_the_same_question_has_one_answer_alone_and_in_company(server: Server) -> None:
    alone = server.ask(QUESTION).json()
    generator = random.Random(0)
    requests = [QUESTION | {"node_id": generator.randrange(1797)} for _ in range(63 * 16)]
    for place in range(0, len(requests), 16):
        requests.insert(place, QUESTION)
    answers = send_all(server.url(), server.headers(), requests, connections=64)
    repeated = send_all(server.url(), server.headers(), [QUESTION] * 1000, connections=64)
    assert {answer.status for answer in answers + repeated} == {200}
    found = [json.loads(a.body) for a in answers + repeated if a.request == QUESTION]
    assert len(found) >= 1063
    for answer in found:
        assert _close(answer["embedding"], alone["embedding"])
        assert answer | {"embedding": None} == alone | {"embedding": None}


def test_bad_requests_harm_none_of_their_batch(server: Server) -> None:
    bad = [
        Sent(b"{", JSON),
        Sent(b'{"node_id": 42}', JSON | {"describe": "True"}),
        Sent(b'{"node_id": 42}', {"Content-Type": "text/css"}),
        {"node_id": "é\n\u2028"},
        {"node_ids": [1] * 3000},
    ]
    requests = [bad[place // 2 % 5] if place % 2 else {"node_id": place} for place in range(400)]
    for answer in send_all(server.url(), server.headers(), requests, connections=64):
        good = isinstance(answer.request, dict) and isinstance(answer.request.get("node_id"), int)
        assert (answer.status == 200) == good, answer
        assert answer.status in {200, 400, 413}, answer


@pytest.fixture(scope="module")
def grpc_stubs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Client code made from the interface description inside TorchServe's own jar."""
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("proto")
    jar = Path(ts.__file__).parent / "frontend" / "model-server.jar"
    with zipfile.ZipFile(jar) as archive:
        archive.extract("inference.proto", folder)
        archive.extract("google/rpc/status.proto", folder)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}"]
    subprocess.run(
        [
            *command,
            f"--python_out={folder}",
            f"--grpc_python_out={folder}",
            "inference.proto",
            "google/rpc/status.proto",
        ],
        check=True,
        cwd=folder,
    )
    sys.path.insert(0, str(folder))
    try:
        import inference_pb2  # type: ignore[import-not-found]
        import inference_pb2_grpc  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(folder))
    return inference_pb2, inference_pb2_grpc


def test_grpc_answers_like_rest(server: Server, grpc_stubs: tuple[Any, Any]) -> None:
    messages, services = grpc_stubs
    key = server.headers()["Authorization"]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = services.InferenceAPIsServiceStub(channel)

        def ask(body: bytes) -> Any:
            request = messages.PredictionsRequest(model_name="graphsage", input={"data": body})
            metadata = (("protocol", "gRPC"), ("authorization", key))
            return json.loads(stub.Predictions(request, metadata=metadata, timeout=30).prediction)

        assert ask(json.dumps(QUESTION).encode()) == server.ask(QUESTION).json()
        # TorchServe has no place for a row's status in a gRPC answer: the error object is the answer.
        assert ask(b'{"node_id": 99999}')["error"]["code"] == "unknown_node"
        assert ask(b"junk")["error"]["code"] == "malformed"
        assert ask(b'{"node_ids": [1, 99999]}')["predictions"][1]["error"]["code"] == "unknown_node"


def test_served_labels_are_as_accurate_as_in_training(server: Server, example: Example) -> None:
    from handler.graph.arrays import Split
    from handler.graph.snapshot import Snapshot

    snapshot = Snapshot.open(example.graph)
    assert snapshot.split is not None
    assert snapshot.label is not None
    nodes = np.flatnonzero(snapshot.split == Split.TEST)
    rows = server.ask({"node_ids": nodes.tolist(), "return": ["label"]}).json()["predictions"]
    right = [int(row["label"]) == snapshot.label[node] for node, row in zip(nodes, rows, strict=True)]
    assert np.mean(right) == pytest.approx(example.result.metrics["test"])
    assert np.mean(right) >= 0.97
