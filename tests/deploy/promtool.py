"""Asks Prometheus' own tool about rules, and finds the names in expressions."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")

_STRING = re.compile(r'"[^"]*"')
_NAME = re.compile(r"(?<![\w:])(?:hopserve_|envoy_|ts_|Requests|Worker)\w+|(?<![\w:])version(?:_\w+)?:[\w:]+")


def promtool(*arguments: str | Path) -> None:
    """Run it; what it complains of fails the test."""
    result = subprocess.run(
        ["promtool", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr


def rules() -> list[dict[str, Any]]:
    """All rules, recording and alerting."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def names_in(expression: str) -> set[str]:
    """The metrics that an expression reads, about: labels that begin like one are not told apart."""
    return set(_NAME.findall(_STRING.sub('""', expression))) - {"WorkerName"}
