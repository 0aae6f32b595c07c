"""Manifests are valid, name only what there is, and give pods no more rights than they need."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.settings import read_settings
from gateway.upstream.properties import read_properties
from tests.deploy.kustomize import (
    KUBERNETES,
    OVERLAYS,
    Manifest,
    containers,
    documents,
    needs_kubectl,
    of_kind,
    ports_of,
    rendered,
    rendered_by_kubectl,
    selected,
    serving,
    templates,
)
from tests.deploy.promtool import DEPLOY

_VERSIONS = ["1.30", "1.37"]
_HASH = re.compile(r'"(hopserve(?:-balancer)?)-[2-9bcdfghkmt]{10}"')
_INFERENCE_SERVICE = documents(KUBERNETES / "kserve" / "inference-service.yaml")[0]
_OURS = "registry.example/hopserve:0.1.0"

every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def _pods() -> list[Any]:
    """All pods, each with the manifest that makes it."""
    made = [
        pytest.param(template["spec"], id=f"{overlay}-{manifest['metadata']['name']}")
        for overlay in OVERLAYS
        for manifest in rendered(overlay)
        for template in templates(manifest)
    ]
    return [*made, pytest.param(_INFERENCE_SERVICE["spec"]["predictor"], id="kserve")]


every_pod = pytest.mark.parametrize("pod", _pods())


def _containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


@every_overlay
@pytest.mark.parametrize("version", _VERSIONS)
def test_manifests_are_valid(overlay: str, version: str) -> None:
    for manifest in rendered(overlay):
        kubernetes_validate.validate(manifest, version, strict=True)


@needs_kubectl
@every_overlay
def test_kubectl_renders_the_same(overlay: str) -> None:
    """But for a hash in the names of ConfigMaps."""

    def comparable(manifests: list[Manifest]) -> list[Any]:
        text = _HASH.sub(r'"\1"', json.dumps(manifests))
        return sorted(json.loads(text), key=lambda manifest: (manifest["kind"], manifest["metadata"]["name"]))

    assert comparable(rendered_by_kubectl(overlay)) == comparable(rendered(overlay))


def test_pods_and_policies_beside_custom_resources_are_valid() -> None:
    predictor = dict(_INFERENCE_SERVICE["spec"]["predictor"])
    assert (predictor.pop("minReplicas"), predictor.pop("maxReplicas")) == (1, 1)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": predictor}
    policy = documents(KUBERNETES / "kserve" / "inference-service.yaml")[1]
    for manifest in (pod, policy):
        kubernetes_validate.validate(manifest, _VERSIONS[-1], strict=True)


def test_every_file_is_used() -> None:
    named = set()
    for file in KUBERNETES.rglob("kustomization.yaml"):
        (content,) = documents(file)
        paths = content["resources"] + [patch["path"] for patch in content.get("patches", [])]
        paths += [name for maps in content.get("configMapGenerator", []) for name in maps["files"]]
        named |= {(file.parent / path).resolve() for path in paths}
    parts = [*KUBERNETES.glob("base/*"), *KUBERNETES.glob("overlays/*/*")]
    assert {path for path in parts if path.name != "kustomization.yaml"} == named - {KUBERNETES / "base"}


@every_pod
def test_pods_have_no_rights(pod: Manifest) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in _containers(pod):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


@every_overlay
def test_what_is_named_is_there(overlay: str) -> None:
    manifests = rendered(overlay)
    maps, claims = of_kind(manifests, "ConfigMap"), of_kind(manifests, "PersistentVolumeClaim")
    for manifest in manifests:
        own = (
            {claim["metadata"]["name"] for claim in manifest["spec"].get("volumeClaimTemplates", [])}
            if (manifest["kind"] == "StatefulSet")
            else set()
        )
        for template in templates(manifest):
            pod = template["spec"]
            assert pod["serviceAccountName"] in of_kind(manifests, "ServiceAccount")
            volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
            mounts = [mount for container in _containers(pod) for mount in container["volumeMounts"]]
            assert {mount["name"] for mount in mounts} == volumes.keys() | own
            for volume in volumes.values():
                assert volume.get("configMap", {}).get("name", "hopserve") in maps
                if "persistentVolumeClaim" in volume:
                    assert volume["persistentVolumeClaim"]["claimName"] in claims
            for mount in mounts:
                if "subPath" in mount:
                    assert mount["subPath"] in maps[volumes[mount["name"]]["configMap"]["name"]]["data"]
        for container in containers(manifest):
            assert container["image"] == _OURS or "valkey" in container["image"]
        assert manifest["metadata"]["namespace"] == "hopserve"


@every_overlay
def test_services_and_budgets_select_pods(overlay: str) -> None:
    manifests = rendered(overlay)
    made = [template["metadata"]["labels"] for manifest in manifests for template in templates(manifest)]
    selectors = [
        manifest["spec"].get("selector", manifest["spec"].get("podSelector"))
        for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy")
        for manifest in of_kind(manifests, kind).values()
    ]
    assert selectors
    for selector in selectors:
        wanted = selector.get("matchLabels", selector)
        assert sum(wanted.items() <= labels.items() for labels in made) == 1


@every_overlay
def test_secrets_are_only_referred_to(overlay: str) -> None:
    """By the keys that the page tells to make, and in no file."""
    manifests = rendered(overlay)
    assert not of_kind(manifests, "Secret")
    page = (DEPLOY.parent / "docs" / "kubernetes.md").read_text()
    for manifest in manifests:
        for container in containers(manifest):
            for variable in container.get("env", []):
                if re.search("KEY|AUTH|PASSWORD|REDIS", variable["name"]):
                    reference = variable["valueFrom"]["secretKeyRef"]
                    assert reference["name"] == "hopserve"
                    assert f"--from-literal={reference['key']}=" in page


@every_overlay
def test_only_what_clients_ask_is_open_to_all(overlay: str) -> None:
    """And metrics are open to the namespace of Prometheus."""
    entrance = {"single-host": "hopserve", "cluster": "hopserve-balancer"}[overlay]
    policies = of_kind(rendered(overlay), "NetworkPolicy")
    for name, policy in policies.items():
        for rule in policy["spec"]["ingress"]:
            ports = [port["port"] for port in rule["ports"]]
            assert ("from" in rule) or (name, ports) == (entrance, ["http"])
            if ports == ["metrics"]:
                (peer,) = rule["from"]
                assert list(peer) == ["namespaceSelector"]
    service = of_kind(rendered(overlay), "Service")["hopserve"]["spec"]
    assert selected(overlay, service["selector"])["metadata"]["name"] == entrance
    assert service["ports"][0]["targetPort"] == "http"


@every_overlay
def test_pods_listen_where_they_are_looked_for(overlay: str) -> None:
    """Services, probes and policies name ports; files say which these are."""
    manifests = rendered(overlay)
    for service in of_kind(manifests, "Service").values():
        known = ports_of(selected(overlay, service["spec"]["selector"]))
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in known
            # There is no one in between to change a port.
            assert service["spec"].get("clusterIP") != "None" or port["port"] == known[port["targetPort"]]
    for manifest in manifests:
        for container in containers(manifest):
            probes = [container.get(f"{kind}Probe", {}) for kind in ("startup", "readiness", "liveness")]
            asked = {probe["httpGet"]["port"] for probe in probes if "httpGet" in probe}
            assert asked <= ports_of(manifest).keys()
    for policy in of_kind(manifests, "NetworkPolicy").values():
        own = ports_of(selected(overlay, policy["spec"]["podSelector"]["matchLabels"]))
        for rule in policy["spec"]["ingress"]:
            assert {port["port"] for port in rule["ports"]} <= own.keys()
        for rule in policy["spec"]["egress"]:
            (peer,) = rule["to"]
            if "podSelector" in peer:
                other = selected(overlay, peer["podSelector"]["matchLabels"])
                assert {port["port"] for port in rule["ports"]} <= ports_of(other).keys()
    settings = read_settings(KUBERNETES / "base" / "gateway.yaml")
    assert settings.metrics is not None
    assert settings.listen.tls is None  # or probes would need the scheme HTTPS
    known = ports_of(of_kind(manifests, "Deployment")["hopserve"])
    assert known == {"http": settings.listen.port, "metrics": settings.metrics.port}
    assert settings.api_keys.required


def test_redis_is_open_to_our_pods_only() -> None:
    manifests = rendered("cluster")
    (rule,) = of_kind(manifests, "NetworkPolicy")["hopserve-redis"]["spec"]["ingress"]
    (peer,) = rule["from"]
    (expression,) = peer["podSelector"]["matchExpressions"]
    asking = {
        template["metadata"]["labels"]["app.kubernetes.io/name"]
        for manifest in manifests
        for template in templates(manifest)
        if "HOPSERVE_REDIS_URL" in {v["name"] for c in containers(manifest) for v in c.get("env", [])}
    }
    assert set(expression["values"]) == asking == {"hopserve", "hopserve-compaction"}


def test_redis_keeps_the_log() -> None:
    """On the disk before it is acknowledged, and nothing goes that has no time to live."""
    stateful = of_kind(rendered("cluster"), "StatefulSet")["hopserve-redis"]
    arguments = stateful["spec"]["template"]["spec"]["containers"][0]["args"]
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "always"
    assert options["--maxmemory-policy"] == "volatile-lru"


def test_there_is_time_to_drain() -> None:
    """preStop, and then as long for the stop itself."""
    for overlay in OVERLAYS:
        deployment = of_kind(rendered(overlay), "Deployment")["hopserve"]
        command = serving(overlay)["lifecycle"]["preStop"]["exec"]["command"]
        timeout_s = float(command[command.index("--timeout-s") + 1])
        grace_s = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace_s >= timeout_s + 60


def test_replicas_are_the_autoscalers() -> None:
    """By a metric that the adapter makes, of one that Prometheus keeps."""
    manifests = rendered("cluster")
    scaler = of_kind(manifests, "HorizontalPodAutoscaler")["hopserve"]["spec"]
    assert "replicas" not in of_kind(manifests, "Deployment")[scaler["scaleTargetRef"]["name"]]["spec"]
    (rule,) = yaml.safe_load((KUBERNETES / "monitoring" / "adapter.yaml").read_text())["rules"]["custom"]
    assert scaler["metrics"][0]["pods"]["metric"]["name"] == rule["name"]["as"]
    (monitor,) = documents(KUBERNETES / "monitoring" / "pod-monitor.yaml")
    endpoints = {
        endpoint["relabelings"][0]["replacement"]: endpoint
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
    }
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert {job["job_name"] for job in prometheus["scrape_configs"]} == endpoints.keys()
    (envoy,) = (job for job in prometheus["scrape_configs"] if job["job_name"] == "envoy")
    kept = envoy["metric_relabel_configs"][0]["regex"]
    assert endpoints["envoy"]["metricRelabelings"][0]["regex"] == kept
    assert re.fullmatch(kept, rule["seriesQuery"].partition("{")[0])


def test_pods_of_a_cluster_begin_with_a_copy(tmp_path: Path) -> None:
    """Of models and graphs; without models they do not begin."""
    pod = of_kind(rendered("cluster"), "Deployment")["hopserve"]["spec"]["template"]["spec"]
    (container,) = pod["initContainers"]
    source, copy = tmp_path / "source", tmp_path / "copy"
    command = [*container["command"], *container["args"]]
    command[-1] = command[-1].replace("/source", str(source)).replace("/srv/hopserve", str(copy))
    copy.mkdir()
    (source / "model_store").mkdir(parents=True)
    (source / "var" / "graphs" / "mine").mkdir(parents=True)
    (source / "var" / "graphs" / "mine" / "CURRENT").write_text("snapshot-7")
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0
    assert list(copy.iterdir()) == []
    (source / "model_store" / "mine-1.0.mar").write_text("archive")
    for _ in range(2):  # a pod may begin again
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    copied = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert copied == {"model_store/mine-1.0.mar", "var/graphs/mine/CURRENT"}


@pytest.mark.parametrize("name", ["config.properties", "gateway.yaml"])
def test_pods_are_configured_as_the_image_is(name: str) -> None:
    """Kustomize reads no file outside of its folder, so these are copies."""
    assert (KUBERNETES / "base" / name).read_bytes() == (DEPLOY / "container" / name).read_bytes()


def test_the_container_differs_from_the_project_only_in_paths() -> None:
    ours = read_properties(DEPLOY.parent / "config.properties")
    theirs = read_properties(DEPLOY / "container" / "config.properties")
    assert ours.inference_url == theirs.inference_url

    def values(file: Path) -> dict[str, str]:
        lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
        return dict(line.split("=", 1) for line in lines)

    def relative(value: str) -> str:
        return value.replace("/opt/hopserve/", "")

    container = values(DEPLOY / "container" / "config.properties")
    assert values(DEPLOY.parent / "config.properties") == {
        name: relative(value) for name, value in container.items()
    }
