"""Renders the overlays as `kubectl kustomize` does, of which it knows what they use; a test compares both."""

from __future__ import annotations

import shutil
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.promtool import DEPLOY

KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
Manifest = dict[str, Any]

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

# By what the elements of lists are told apart; lists not named here take each other's place.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}


def documents(file: Path) -> list[Manifest]:
    """All manifests of a file."""
    return [document for document in yaml.safe_load_all(file.read_text()) if document]


def rendered(overlay: str) -> list[Manifest]:
    """All manifests of an overlay, as they reach the cluster."""
    return _rendered(KUBERNETES / "overlays" / overlay)


def rendered_by_kubectl(overlay: str) -> list[Manifest]:
    """The same, by the real tool."""
    folder = KUBERNETES / "overlays" / overlay
    result = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return list(yaml.safe_load_all(result.stdout))


def _rendered(folder: Path) -> list[Manifest]:
    (kustomization,) = documents(folder / "kustomization.yaml")
    found: list[Manifest] = []
    for resource in kustomization["resources"]:
        path = folder / resource
        found += _rendered(path) if path.is_dir() else documents(path)
    for generator in kustomization.get("configMapGenerator", []):
        found.append(_config_map(folder, generator))
    for patch in kustomization.get("patches", []):
        (changes,) = documents(folder / patch["path"])
        place = next(place for place, manifest in enumerate(found) if _name(manifest) == _name(changes))
        found[place] = _merged(found[place], changes)
    for manifest in found:
        for labels in kustomization.get("labels", []):
            _label(manifest, labels["pairs"])
        if "namespace" in kustomization:
            manifest["metadata"]["namespace"] = kustomization["namespace"]
        for image in kustomization.get("images", []):
            for container in containers(manifest):
                if container["image"] == image["name"]:
                    container["image"] = f"{image['newName']}:{image['newTag']}"
    return found


def _config_map(folder: Path, generator: Manifest) -> Manifest:
    files = {name: (folder / name).read_text() for name in generator["files"]}
    metadata = {"name": generator["name"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files}


def _name(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _merged(base: Any, changes: Any, key: str = "") -> Any:
    """A strategic merge."""
    if isinstance(base, dict) and isinstance(changes, dict):
        merged = deepcopy(base)
        for name, value in changes.items():
            merged[name] = _merged(base[name], value, name) if name in base else deepcopy(value)
        return merged
    if isinstance(base, list) and key in _KEYS:
        by = _KEYS[key]
        known = {element[by]: element for element in base}
        changed = {element[by]: _merged(known.get(element[by], {}), element) for element in changes}
        left = [deepcopy(element) for name, element in known.items() if name not in changed]
        return [*changed.values(), *left]
    return deepcopy(changes)


def _label(manifest: Manifest, labels: Manifest) -> None:
    places = [manifest, *templates(manifest)]
    for place in places:
        metadata = place.setdefault("metadata", {})
        metadata["labels"] = {**metadata.get("labels", {}), **labels}


def templates(manifest: Manifest) -> list[Manifest]:
    """Those of pods, in what makes pods."""
    spec = manifest.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    return [spec["template"]] if "template" in spec else []


def containers(manifest: Manifest) -> list[Manifest]:
    """Of the pods that a manifest makes, those that go first included."""
    return [
        container
        for template in templates(manifest)
        for kind in ("initContainers", "containers")
        for container in template["spec"].get(kind, [])
    ]


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    """Those of one kind, by name."""
    return {manifest["metadata"]["name"]: manifest for manifest in manifests if manifest["kind"] == kind}


def serving(overlay: str, name: str = "hopserve") -> Manifest:
    """The container of a Deployment."""
    (container,) = of_kind(rendered(overlay), "Deployment")[name]["spec"]["template"]["spec"]["containers"]
    found: Manifest = container
    return found


def selected(overlay: str, selector: Manifest) -> Manifest:
    """What makes the pods that a selector means."""
    (found,) = (
        manifest
        for manifest in rendered(overlay)
        for template in templates(manifest)
        if selector.items() <= template["metadata"]["labels"].items()
    )
    return found


def ports_of(manifest: Manifest) -> dict[str, int]:
    """Where pods listen that a manifest makes, by name."""
    return {
        port["name"]: port["containerPort"]
        for container in containers(manifest)
        for port in container.get("ports", [])
    }
