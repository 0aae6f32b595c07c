"""The balancer of a cluster agrees with the pods that it asks, and runs as its manifest has it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.envoy.hosts import HOSTS
from gateway.envoy.routes import READY
from gateway.hosts.settings import read_hosts
from scripts.cli.main import hopserve
from tests.deploy.container import Container, needs_namespaces
from tests.deploy.kustomize import KUBERNETES, documents, of_kind, ports_of, rendered, selected, serving
from tests.deploy.probing import get, probe
from tests.deploy.promtool import DEPLOY

_HOSTS = KUBERNETES / "overlays" / "cluster" / "hosts.yaml"
_KEY = "test-0123456789abcdef"
_HOST_KEY = "host-0123456789abcdef"

# Two pods: each says at /ready whether a file bears its address, and else which key it was sent.
_PODS = """
import http.server, json, pathlib, threading
class Pod(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *ignored): pass
    def do_GET(self):
        self.answer(503 if pathlib.Path("/tmp", self.server.server_address[0]).exists() else 200, {})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, {"pod": self.server.server_address[0], "key": self.headers["X-Api-Key"]})
    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
for address in ("127.0.0.2", "127.0.0.3"):
    server = http.server.ThreadingHTTPServer((address, 9000), Pod)
    threading.Thread(target=server.serve_forever).start()
"""


def test_the_balancer_finds_pods_by_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file, as the ConfigMap has it, is what `hopserve balancer check` calls valid."""
    manifests = rendered("cluster")
    file = tmp_path / "hosts.yaml"
    file.write_text(of_kind(manifests, "ConfigMap")["hopserve-balancer"]["data"]["hosts.yaml"])
    settings = read_hosts(file)
    (pods,) = settings.hosts
    name, _, port = pods.address.rpartition(":")
    service = of_kind(manifests, "Service")[name]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", False)
    assert int(port) == service["ports"][0]["port"]
    assert selected("cluster", service["selector"])["metadata"]["name"] == "hopserve"
    assert settings.metrics is not None
    assert ports_of(of_kind(manifests, "Deployment")["hopserve-balancer"]) == {
        "http": settings.listen.port,
        "metrics": settings.metrics.port,
    }
    monkeypatch.setenv("HOPSERVE_API_KEYS", "me=0123456789abcdef")
    monkeypatch.setenv("HOPSERVE_HOST_KEY", "0123456789abcdef")
    hopserve(["balancer", "check", "--hosts", str(file)], standalone_mode=False)
    assert capsys.readouterr().out == "valid\n"


def test_only_the_balancer_asks_pods_of_a_cluster() -> None:
    """By the network, and by the key: clients' keys are its own to ask for, and pods take its key alone."""
    policies = of_kind(rendered("cluster"), "NetworkPolicy")
    balancers = [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "hopserve-balancer"}}}]
    asked = [rule for rule in policies["hopserve"]["spec"]["ingress"] if rule["ports"][0]["port"] == "http"]
    assert [rule["from"] for rule in asked] == [balancers]
    (allowed, _) = policies["hopserve-balancer"]["spec"]["egress"]
    assert allowed["to"] == [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "hopserve"}}}]

    def keys(name: str) -> dict[str, str]:
        return {
            variable["name"]: variable["valueFrom"]["secretKeyRef"]["key"]
            for variable in serving("cluster", name)["env"]
        }

    assert keys("hopserve")["HOPSERVE_API_KEYS"] == "host-keys"
    assert keys("hopserve-balancer") == {"HOPSERVE_API_KEYS": "api-keys", "HOPSERVE_HOST_KEY": "host-key"}
    assert read_hosts(_HOSTS).api_keys.required


def test_secrets_are_made_as_they_are_read() -> None:
    """What the page makes for pods is a name and the key that it makes for the balancer."""
    page = (DEPLOY.parent / "docs" / "kubernetes.md").read_text()
    (host_key,) = re.findall(r"--from-literal=host-key=(\S+)", page)
    assert re.findall(r"--from-literal=host-keys=(\S+)", page) == [f"balancer={host_key}"]


def test_a_balancer_is_always_there() -> None:
    """Two, on machines of their own, of which one goes at a time, once those who ask it know."""
    deployment = of_kind(rendered("cluster"), "Deployment")["hopserve-balancer"]["spec"]
    budget = of_kind(rendered("cluster"), "PodDisruptionBudget")["hopserve-balancer"]["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert budget["maxUnavailable"] == 1
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"] == budget["selector"] == deployment["selector"]


@pytest.mark.parametrize("name", ["hopserve", "hopserve-balancer"])
def test_what_probes_ask_for_is_no_reason_to_start_again(name: str) -> None:
    """`/ready` needs others, such as workers that load or pods: only whether requests come depends on it."""
    container = serving("cluster", name)
    assert container["readinessProbe"]["httpGet"] == {"path": READY, "port": "http"}
    for kind in ("startupProbe", "livenessProbe"):
        assert container[kind].get("httpGet", {}).get("path") != READY


def test_there_is_time_for_the_balancer_to_answer() -> None:
    deployment = of_kind(rendered("cluster"), "Deployment")["hopserve-balancer"]
    (word, pause_s) = serving("cluster", "hopserve-balancer")["lifecycle"]["preStop"]["exec"]["command"]
    settings = read_hosts(_HOSTS)
    grace_s = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert word == "sleep"
    assert grace_s >= float(pause_s) + settings.time_outs.answer_s + 10


def test_balancers_are_scraped_apart_from_pods() -> None:
    """Or what both count would count twice."""
    (monitor,) = documents(KUBERNETES / "monitoring" / "balancer-monitor.yaml")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in ports_of(selected("cluster", wanted))
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "balancer"}]
    kept = re.compile(endpoint["metricRelabelings"][0]["regex"])
    assert kept.fullmatch(f"envoy_cluster_{HOSTS}_membership_healthy")
    assert kept.fullmatch("envoy_http_front_downstream_rq")


@pytest.fixture
def balancer(program: Path, tmp_path: Path) -> Iterator[Container]:
    """A pod of the balancer, as the cluster has it; the pods that it asks have another port here."""
    hosts = _HOSTS.read_text()
    assert hosts.count("hopserve-pods:8000") == 1
    file = tmp_path / "hosts.yaml"
    file.write_text(hosts.replace("hopserve-pods:8000", "hopserve-pods:9000"))
    file.chmod(0o444)
    pod = serving("cluster", "hopserve-balancer")
    container = Container(
        tmp_path / "balancer",
        program,
        {"hosts.yaml": file},
        {"HOPSERVE_API_KEYS": f"test={_KEY}", "HOPSERVE_HOST_KEY": _HOST_KEY},
        command=[*pod["command"], *pod["args"]],
        hosts={"hopserve-pods": ["127.0.0.2", "127.0.0.3"]},
    )
    yield container
    container.kill()


def _spread(container: Container) -> dict[str, str]:
    """Which pod answers about each of some nodes, asked for twice."""
    printed = container.python(f"""
        import collections, json, httpx
        pods = collections.defaultdict(set)
        for node in [*range(16)] * 2:
            answer = httpx.post("http://127.0.0.1:8000/v1/m/predict", json={{"node_id": node}},
                                headers={{"X-Api-Key": "{_KEY}"}}).raise_for_status().json()
            assert answer["key"] == "{_HOST_KEY}", answer
            pods[node].add(answer["pod"])
        print(json.dumps({{node: " ".join(sorted(asked)) for node, asked in pods.items()}}))
    """)
    found: dict[str, str] = json.loads(printed)
    return found


@needs_namespaces
def test_a_balancer_from_its_start_to_its_end(balancer: Container) -> None:
    """Its file system is as read-only as that of others, and it starts before there are pods."""
    pod = serving("cluster", "hopserve-balancer")
    balancer.until(lambda: probe(balancer, pod, "startupProbe") == 200, 30)
    assert probe(balancer, pod, "livenessProbe") == 200
    assert probe(balancer, pod, "readinessProbe") == 503
    assert balancer.run("hopserve", "balancer", "check") == (0, "valid\n")

    pods = balancer.start("python", "-c", _PODS)
    balancer.until(lambda: probe(balancer, pod, "readinessProbe") == 200, 20)
    balancer.until(lambda: balancer.run("hopserve", "balancer", "status")[0] == 0, 20)
    assert get(balancer, 8000, "/v1/m/health")[0] == 401
    assert "envoy_cluster_hosts_membership_healthy" in get(balancer, 8003, "/envoy")[1]
    spread = _spread(balancer)
    assert set(spread.values()) == {"127.0.0.2", "127.0.0.3"}

    # A pod that drains gets no more requests: its nodes are the other one's.
    assert balancer.run("touch", "/tmp/127.0.0.3")[0] == 0
    balancer.until(lambda: balancer.run("hopserve", "balancer", "status")[0] == 1, 20)
    assert set(_spread(balancer).values()) == {"127.0.0.2"}
    assert probe(balancer, pod, "readinessProbe") == 200

    # Kubernetes waits for the one command, and then for the end. (10 s are 0 here.)
    stop = pod["lifecycle"]["preStop"]["exec"]["command"]
    assert balancer.run(*(argument.replace("10", "0") for argument in stop)) == (0, "")
    assert balancer.terminate(40) == 0
    assert balancer.output == "ready\n"
    pods.communicate(timeout=30)
