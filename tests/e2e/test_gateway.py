"""The gateway in front of a real TorchServe: where requests go, and what is refused."""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
import yaml

from gateway.tuning.load import send_all
from handler import headers
from tests.gateways import Front, fronted
from tests.live_servers import until

_KEYS = {"alice": "alice-0123456789abcdef", "bob": "bob-0123456789abcdef"}
_ALICE, _BOB = ({"x-api-key": key} for key in _KEYS.values())
_MAX_BYTES = 100_000
_RECEIVE_S = 1.5


@pytest.fixture(scope="module")
def front(archive_of: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """Two versions behind a gateway with limits, of which 1.0 has all traffic."""
    folder = tmp_path_factory.mktemp("front")
    keys = folder / "keys.yaml"
    keys.write_text(yaml.safe_dump(_KEYS))
    settings = {
        "api_keys": {"file": str(keys)},
        "limits": {"keys": {"alice": {"requests_per_s": 40, "burst": 20}}},
        "time_outs": {"receive_s": _RECEIVE_S},
        "breaker": {"max_requests": 64, "max_pending": 64, "low_share": 0.1},
        "max_request_bytes": _MAX_BYTES,
        "log": {"sample": 0},
    }
    with fronted(folder / "ts", archive_of("1.0"), archive_of("2.0"), settings=settings) as started:
        yield started


def _version_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    version: str = answer.json()["model_version"]
    return version


def _error_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def _raw(front: Front, sent: bytes, timeout_s: float = 20) -> bytes:
    """Whatever comes back for some bytes, until the connection is closed."""
    listen = front.gateway.settings.listen
    with socket.create_connection((listen.address, listen.port), timeout=timeout_s) as connection:
        connection.sendall(sent)
        received = b""
        while block := connection.recv(65_536):
            received += block
    return received


def test_requests_go_to_the_version_that_they_name(front: Front) -> None:
    node = {"node_id": 42}
    assert _version_of(front.ask(node)) == "1.0"
    assert _version_of(front.ask(node, headers={"X-Model-Version": "2.0"})) == "2.0"
    assert _version_of(front.ask(node, headers={"X-Model-Version": "2"})) == "2.0"
    assert _version_of(front.ask(node, headers={"X-Model-Version": "1.0"})) == "1.0"
    assert _version_of(front.ask(node, "/v2/graphsage/predict")) == "2.0"
    assert _error_of(front.ask(node, headers={"X-Model-Version": "3.0"})) == (404, "unknown_version")
    assert _error_of(front.ask(node, "/v3/graphsage/predict")) == (404, "not_found")


def test_answers_are_those_of_the_version_itself(front: Front) -> None:
    node = {"node_id": 42, "max_staleness_ms": 0}
    through, direct = front.ask(node).json(), front.server.ask(node, version="1.0").json()
    assert through == direct
    for request in ({"node_id": -1}, {"node_id": []}, {}, {"node_ids": []}):
        assert front.ask(request).json() == front.server.ask(request, version="1.0").json()


def test_health_is_what_a_worker_says(front: Front) -> None:
    for path in ("/v1/graphsage/health", "/v2/graphsage/health"):
        assert httpx.get(front.url(path)).status_code == 200


def test_explanations_are_asked_of_the_version(front: Front) -> None:
    for path, version in (("/v1/graphsage/explain", "1.0"), ("/v2/graphsage/explain", "2.0")):
        answer = front.ask({"node_id": 42}, path)
        assert answer.status_code == 200
        assert (answer.json()["model_version"], answer.json()["nodes"][0]["node_id"]) == (version, 42)
    # A client cannot turn a prediction into one by TorchServe's own header.
    assert "embedding" in front.ask({"node_id": 42}, headers={"explain": "True"}).json()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"])
def test_other_methods_are_refused(front: Front, method: str) -> None:
    assert httpx.request(method, front.url()).status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/models",
        "/models/graphsage",
        "/predictions/graphsage",
        "/ping",
        "/metrics",
        "/token",
        "/stats",
        "/quitquitquit",
        "/v1/graphsage/predict/../../../models",
        "/v1/graphsage/../../models",
        "/v1/graphsage/..%2f..%2fmodels",
        "/v1/graphsage/%2e%2e/%2e%2e/models",
        "/v1/graphsage/predict%00",
        "/v1/graphsage/predict;/../../models",
        "//models",
        "/v1/../models",
        "/v1/graph/predict",
        "/v1/graphsage/predict/1.0",
        "http://127.0.0.1:8081/models",
    ],
)
def test_nothing_else_can_be_reached(front: Front, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        fields = "host: gateway\r\ncontent-length: 0\r\nconnection: close\r\n"
        received = _raw(front, f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode())
        status = int(received.split()[1])
        # Paths that become the one of a model when they are made plain are asked as such.
        assert status in {400, 404, 405}, received


def test_headers_that_divert_requests_are_taken_off(front: Front) -> None:
    diverting = {
        "describe": "True",
        "explain": "True",
        "authorization": "Bearer wrong",
        headers.PROBE: "1",
        "x-hopserve-verb": "models",
        "x-hopserve-client": "bob",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-original-path": "/models",
    }
    answer = front.ask({"node_id": 42}, headers=diverting)
    assert answer.json()["node_id"] == 42
    assert headers.WORKER not in answer.headers


def test_smuggled_requests_are_refused(front: Front) -> None:
    inner = b"GET /models HTTP/1.1\r\nhost: x\r\n\r\n"
    start = b"POST /v1/graphsage/predict HTTP/1.1\r\nhost: gateway\r\n"
    for fields in (
        b"content-length: 4\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 4\r\ncontent-length: 5\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"content-length: +4\r\n",
        b"content_length: 4\r\n",
        b"x-a: 1\r\n folded: 2\r\n",
        b"x-a: 1\x00\r\n",
    ):
        received = _raw(front, start + fields + b"\r\n0\r\n\r\n" + inner)
        assert int(received.split()[1]) in {400, 501}, (fields, received)
        assert b"modelName" not in received


def test_large_requests_are_refused(front: Front) -> None:
    answer = front.ask({"node_ids": ["x" * _MAX_BYTES]})
    assert _error_of(answer) == (413, "request_too_large")
    many = {f"x-{number}": "1" for number in range(100)}
    assert front.ask({"node_id": 42}, headers=many).status_code == 431
    assert front.ask({"node_id": 42}, headers={"x-long": "1" * 20_000}).status_code == 431


def test_clients_that_send_slowly_are_cut_off(front: Front) -> None:
    started = time.monotonic()
    head = b"POST /v1/graphsage/predict HTTP/1.1\r\nhost: gateway\r\n"
    received = _raw(front, head + b'content-length: 100\r\n\r\n{"node_id": ')
    assert int(received.split()[1]) == 408
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    assert _raw(front, head) != b""  # nor do headers that never end
    assert time.monotonic() - started < 10 * _RECEIVE_S
    assert front.ask({"node_id": 42}).status_code == 200


def test_wrong_keys_are_refused_and_keys_can_change(front: Front) -> None:
    node = {"node_id": 42}
    assert front.ask(node, headers=_BOB).status_code == 200
    assert _error_of(front.ask(node, headers={"x-api-key": "wrong"})) == (401, "unauthorized")
    assert _error_of(front.ask(node, headers={"x-api-key": ""})) == (401, "unauthorized")
    file = Path(front.gateway.settings.api_keys.file or "")
    carol = {"x-api-key": "carol-0123456789abcdef"}
    file.write_text(yaml.safe_dump({**_KEYS, "carol": carol["x-api-key"]}))
    until(lambda: front.ask(node, headers=carol).status_code == 200)
    file.write_text(yaml.safe_dump(_KEYS))
    until(lambda: front.ask(node, headers=carol).status_code == 401)


def test_one_key_is_limited_and_another_is_not(front: Front) -> None:
    limit = front.gateway.settings.limits.keys["alice"]
    url, node = front.url(), {"node_id": 42}
    alice: Counter[int] = Counter()
    with httpx.Client() as client:
        started = time.monotonic()
        while (passed_s := time.monotonic() - started) < 5:
            answer = client.post(url, json=node, headers=_ALICE)
            alice[answer.status_code] += 1
            if answer.status_code == 429:
                assert answer.headers["retry-after"] == "1"
                assert _error_of(answer) == (429, "rate_limited")
            alice[client.post(url, json=node, headers=_BOB).status_code + 1_000] += 1
    allowed = limit.burst + limit.requests_per_s * passed_s
    assert alice[200] < alice.total() / 2 - alice[429] / 2, "too slow to meet the limit"
    assert alice[200] == pytest.approx(allowed, rel=0.05)
    assert set(alice) == {200, 429, 1_200}


def test_low_priority_is_refused_first(front: Front) -> None:
    url = front.url()
    requests = [{"node_ids": list(range(100)), "max_staleness_ms": 0}] * 200
    low = Counter(answer.status for answer in send_all(url, {"x-priority": "low"}, requests, 40))
    high = Counter(answer.status for answer in send_all(url, {}, requests, 40))
    assert low[503] > 0
    assert low[200] > 0
    assert high == {200: 200}


def test_numbers_of_requests_come_back_and_are_logged(front: Front) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    sent = {"x-request-id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "traceparent": trace}
    answer = front.ask({"node_id": 42}, headers=sent)
    assert answer.headers["x-request-id"] == sent["x-request-id"]
    assert re.fullmatch("[0-9a-f-]{36}", front.ask({"node_id": 42}).headers["x-request-id"])
    log = front.gateway.files.log

    def logged() -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [row for row in rows if row.get("request_id") == sent["x-request-id"]]

    until(lambda: logged() != [])
    (row,) = logged()
    assert (row["traceparent"], row["version"], row["status"]) == (trace, "graphsage@1.0", 200)
    assert row["path"] == "/v1/graphsage/predict"
    assert row["ms"] >= 0


def test_keys_of_torchserve_may_be_renewed_by_anyone(front: Front) -> None:
    for _ in range(5):
        front.server.client()  # its keys are read anew each time
        front.hopserve("token", "inference", "--renew")
        assert front.ask({"node_id": 42}).status_code == 200


def test_statistics_are_by_version(front: Front) -> None:
    front.ask({"node_id": 42}, headers={"X-Model-Version": "2.0"})
    url = f"http://127.0.0.1:{front.gateway.settings.admin_port}/stats/prometheus"

    def bucket() -> str:
        return httpx.get(url, params={"filter": "upstream_rq_time"}).text

    wanted = 'envoy_cluster_upstream_rq_time_bucket{model_name="graphsage",model_version="2.0",le="1000"}'
    until(lambda: wanted in bucket())
    counts = httpx.get(url, params={"filter": "upstream_rq_2xx"}).text
    assert (
        'envoy_cluster_upstream_rq{response_code_class="2xx",model_name="graphsage",model_version="2.0"}'
        in counts
    )


def test_keys_can_be_required_and_connections_encrypted(
    archive_of: Callable[..., Path], tmp_path: Path
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    (tmp_path / "keys.yaml").write_text(yaml.safe_dump(_KEYS))
    settings = {
        "api_keys": {"file": str(tmp_path / "keys.yaml"), "required": True},
        "listen": {
            "tls": {"certificate": str(tmp_path / "certificate.pem"), "key": str(tmp_path / "key.pem")}
        },
    }
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with fronted(tmp_path / "ts", archive_of("1.0"), settings=settings) as front:
        assert front.url().startswith("https://")
        ask = {"json": {"node_id": 42}, "verify": context}
        assert httpx.post(front.url(), headers=_BOB, **ask).status_code == 200
        assert _error_of(httpx.post(front.url(), **ask)) == (401, "unauthorized")
        until(lambda: httpx.get(front.url("/ready"), verify=context).json() == {"state": "ready"})
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            front.ask({"node_id": 42}, headers=_BOB)
