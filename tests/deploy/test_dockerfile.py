"""The Dockerfile names what is there, and what it leads to is what manifests say."""

from __future__ import annotations

import configparser
import fnmatch
import re
from itertools import pairwise
from pathlib import Path

from gateway.settings import read_settings
from tests.deploy.dockerfile import DOCKERFILE, copied, read_image, stages
from tests.deploy.kustomize import OVERLAYS, of_kind, rendered
from tests.deploy.promtool import DEPLOY

_ROOT = DEPLOY.parent


def _config() -> configparser.ConfigParser:
    config = configparser.ConfigParser(interpolation=None)
    config.read(_ROOT / "setup.cfg")
    return config


def test_what_is_copied_is_there_and_not_ignored() -> None:
    rules = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().split("\n")
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    sources = [source for paths, _ in copied() for source in paths]
    assert sources
    assert set(sources) == allowed
    assert all((_ROOT / source).exists() for source in sources)


def test_every_package_is_copied() -> None:
    packages = [line.rstrip("*") for line in _config()["options.packages.find"]["include"].split()]
    sources = {source for paths, _ in copied() for source in paths}
    assert set(packages) <= sources


def test_extras_and_pytorch_are_those_of_setup_cfg() -> None:
    arguments = dict(rest.split("=", 1) for word, rest in stages()[0] if word == "ARG")
    assert set(arguments["EXTRAS"].split(",")) <= set(_config()["options.extras_require"])
    (run,) = (rest for word, rest in stages()[0] if word == "RUN" and "grep" in rest)
    pattern = re.search(r"'(.*?)'", run)
    assert pattern is not None
    torch = re.findall(pattern[1], (_ROOT / "setup.cfg").read_text(), re.MULTILINE)
    assert [line.strip() for line in torch] == ["torch==2.13.0"]


def test_python_is_that_of_the_project() -> None:
    assert re.search(r"^ARG PYTHON=python:3\.11-slim$", DOCKERFILE.read_text(), re.MULTILINE)
    assert [stage[0][1].split()[0] for stage in stages()] == ["${PYTHON}", "${PYTHON}"]


def test_the_configuration_finds_its_files() -> None:
    """Those that the image has, and not in the folder that others mount over."""
    targets = {f"{target}{Path(path).name}" for paths, target in copied() for path in paths}
    text = (DEPLOY / "container" / "config.properties").read_text()
    named = re.findall(r"/opt/hopserve/deploy/[\w.]+", text)
    assert len(named) == 2
    assert set(named) <= targets
    assert read_image().environment["HOPSERVE_TS_CONFIG"] in targets


def test_ports_are_those_of_the_gateway() -> None:
    settings = read_settings(DEPLOY / "container" / "gateway.yaml")
    assert settings.metrics is not None
    (exposed,) = (rest for word, rest in stages()[-1] if word == "EXPOSE")
    assert exposed.split() == [str(settings.listen.port), str(settings.metrics.port)]


def test_manifests_run_what_the_image_runs() -> None:
    image = read_image()
    for overlay in OVERLAYS:
        pod = of_kind(rendered(overlay), "Deployment")["hopserve"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert [*container["command"], *container["args"]] == image.command
        assert container["startupProbe"]["exec"]["command"] == image.health
        assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == image.user
        writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        assert writable == [image.folder, "/tmp"]


def test_words_of_the_dockerfile_come_in_an_order_that_holds() -> None:
    """The user is set once its folder is the user's, and nothing runs afterwards."""
    words = [word for word, _ in stages()[-1]]
    assert words.index("RUN") < words.index("USER")
    assert ("USER", "RUN") not in set(pairwise(words))


def test_no_secret_of_this_machine_gets_into_the_image() -> None:
    rules = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in rules
    allowed = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    for name in ("key_file.json", "var", "logs", "model_store", ".venv", ".git"):
        assert not any(fnmatch.fnmatch(name, rule) for rule in allowed)
