"""The image's command, probes and hooks, run as its user where nothing but the volume can be written to."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archive.pack import PackPlan, pack
from tests.conftest import Example
from tests.deploy.container import Container, needs_namespaces
from tests.deploy.kustomize import KUBERNETES, serving
from tests.deploy.probing import get, probe

pytestmark = needs_namespaces

_KEY = "test-0123456789abcdef"
_GRAPH = "var/graphs/digits"
_ENVIRONMENT = {"HOPSERVE_API_KEYS": f"test={_KEY}", "HOPSERVE_GRAPH": f"/srv/hopserve/{_GRAPH}"}
_SETTINGS = {name: KUBERNETES / "base" / name for name in ("config.properties", "gateway.yaml")}
_READY_S = 200  # where the kernels must be compiled; else 20

# Asks again and again until the pod is not ready any more, as those do who send requests; and over a new
# connection each, as an open one may be closed behind its answer.
_ASKING = f"""
import json, subprocess, urllib.request
def ask():
    body = json.dumps({{"node_id": 42}}).encode()
    headers = {{"X-Api-Key": "{_KEY}", "Content-Type": "application/json"}}
    request = urllib.request.Request("http://127.0.0.1:8000/v1/graphsage/predict", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["label"]
labels = []
print("asking", flush=True)
while subprocess.run(["hopserve", "ready"], capture_output=True).returncode == 0:
    labels += [ask() for _ in range(20)]
labels += [ask() for _ in range(20)]
print(json.dumps({{label: labels.count(label) for label in labels}}))
"""


@pytest.fixture
def start(program: Path, tmp_path: Path) -> Iterator[Callable[[], Container]]:
    """Starts a container, whose volume is `pod/data`."""
    started: list[Container] = []

    def begin() -> Container:
        started.append(Container(tmp_path / "pod", program, _SETTINGS, _ENVIRONMENT))
        return started[-1]

    yield begin
    for container in started:
        container.kill()


def test_a_pod_from_its_start_to_its_end(
    start: Callable[[], Container], example: Example, tmp_path: Path
) -> None:
    volume = tmp_path / "pod" / "data"
    shutil.copytree(example.graph, volume / _GRAPH)
    pack(
        PackPlan("graphsage", "1.0", model_folder=example.export, graph_folder=example.graph),
        volume / "model_store",
    )
    container = start()
    pod = serving("single-host")
    ready = pod["startupProbe"]["exec"]["command"]
    alive = pod["livenessProbe"]["exec"]["command"]
    stop = pod["lifecycle"]["preStop"]["exec"]["command"]

    # Loading: not ready before it is, though TorchServe's /ping would say otherwise.
    said: list[tuple[int, str]] = []

    def is_ready() -> bool:
        said.append(container.run(*ready))
        return said[-1][0] == 0

    container.until(is_ready, _READY_S, every_s=1)
    assert [status for status, _ in said[:-1]] == [1] * (len(said) - 1)
    assert said[0][1].startswith("broken: /srv/hopserve/key_file.json: missing"), said
    assert any(text.startswith("loading: no worker of graphsage 1.0 is ready") for _, text in said), said
    assert said[-1] == (0, "ready\n")
    assert container.run(*alive) == (0, "ready\n")
    container.until(lambda: probe(container, pod, "readinessProbe") == 200, 20)

    # As another user, with the command as the first process, and nothing to write to but the volume and /tmp.
    assert container.run("id", "-u")[1] == "10001\n"
    assert "hopserve\0serve" in container.run("cat", "/proc/1/cmdline")[1]
    for place in ("/", "/opt/hopserve", "/opt/hopserve/venv/bin", "/etc", "/usr", "/var", "/root"):
        status, _ = container.run("touch", f"{place}/written")
        assert status != 0, place
    # Where everybody may write, nobody can.
    status, text = container.run("touch", "/var/tmp/written")
    assert (status, "Read-only file system" in text) == (1, True)

    # It answers who has a key, and Prometheus; and nobody else.
    assert get(container, 8000, "/v1/graphsage/health", {"X-Api-Key": _KEY})[0] == 200
    assert get(container, 8000, "/v1/graphsage/health")[0] == 401
    assert "hopserve_requests_total" in get(container, 8003, "/torchserve")[1]
    assert "envoy_cluster_upstream_rq_active" in get(container, 8003, "/envoy")[1]
    assert get(container, 8003, "/controller")[0] == 200
    assert get(container, 8003, "/quitquitquit")[0] == 404

    # preStop: not ready at once but alive, and everything that still comes is answered. (10 s are 2 here.)
    asking = container.start("python", "-c", _ASKING)
    assert asking.stdout is not None
    assert asking.stdout.readline() == "asking\n"
    time.sleep(1)
    stopping = container.start(*(argument.replace("10", "2") for argument in stop))
    container.until(lambda: container.run(*ready) == (1, "draining: a stop is coming\n"), 20)
    assert probe(container, pod, "readinessProbe") == 503
    assert container.run(*alive)[0] == 0
    printed, _ = asking.communicate(timeout=60)
    assert list(json.loads(printed)) == ["1"]
    printed, _ = stopping.communicate(timeout=60)
    assert (stopping.returncode, printed.splitlines()[-1]) == (0, "drained")

    # SIGTERM: it ends by itself, and says that all went well.
    assert container.terminate(60) == 0
    assert container.output.endswith("stopped\n"), container.output


def test_a_pod_can_be_stopped_while_it_loads(start: Callable[[], Container]) -> None:
    """The first process of a container gets no signal that it does not wait for; this volume is empty."""
    container = start()
    container.until(lambda: "building the digits graph" in container.output, 60)
    assert container.terminate(60) == 130
    assert "interrupted" in container.output
