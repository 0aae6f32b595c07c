"""The dashboard can be drawn, and asks for nothing that nobody exposes; every alert says what to do."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from handler.metrics import exposed_names
from tests.deploy.promtool import DEPLOY, alerts, names_in, needs_promtool, promtool, recorded, rules

DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "hopserve.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
DRAWN = [panel for panel in PANELS if panel["type"] != "row"]
# What Envoy, the controller and TorchServe expose; the latter's own are those that metrics.yaml keeps.
_ENVOY = {
    "envoy_cluster_outlier_detection_ejections_active",
    "envoy_cluster_upstream_rq",
    "envoy_cluster_upstream_rq_active",
    "envoy_cluster_upstream_rq_active_overflow",
    "envoy_cluster_upstream_rq_completed",
    "envoy_cluster_upstream_rq_pending_active",
    "envoy_cluster_upstream_rq_pending_overflow",
    "envoy_cluster_upstream_rq_per_try_timeout",
    "envoy_cluster_upstream_rq_retry",
    "envoy_cluster_upstream_rq_time_bucket",
    "envoy_cluster_upstream_rq_time_count",
    "envoy_cluster_upstream_rq_time_sum",
    "envoy_http_front_downstream_cx_active",
    "envoy_http_front_downstream_rq",
    "envoy_server_memory_allocated",
}
_CONTROLLER = {"hopserve_degraded_answers_total"}


def _torchserve() -> set[str]:
    declared = yaml.safe_load((DEPLOY / "metrics.yaml").read_text())["ts_metrics"]
    return {metric["name"] for kind in declared.values() for metric in kind}


def _expressions() -> list[str]:
    """Of the dashboard, with Grafana's variables replaced."""
    variables = [variable["definition"] for variable in DASHBOARD["templating"]["list"][1:]]
    queries = [re.sub(r"label_values\((.*), \w+\)", r"\1", query) for query in variables]
    texts = [target["expr"] for panel in DRAWN for target in panel["targets"]] + queries
    return [re.sub(r"\$\w+", "x", text.replace("$__rate_interval", "5m")) for text in texts]


@pytest.mark.parametrize("source", ["rules", "dashboard"])
def test_only_metrics_that_exist_are_read(source: str) -> None:
    texts = [rule["expr"] for rule in rules()] if source == "rules" else _expressions()
    read = set().union(*map(names_in, texts))
    assert read - exposed_names() - _torchserve() - _ENVOY - _CONTROLLER - recorded() == set()


def test_prometheus_keeps_what_is_read_of_envoy() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (envoy,) = (job for job in config["scrape_configs"] if job["job_name"] == "envoy")
    (keep,) = envoy["metric_relabel_configs"]
    assert all(re.fullmatch(keep["regex"], name) for name in _ENVOY)


@needs_promtool
def test_expressions_are_valid(tmp_path: Path) -> None:
    file = tmp_path / "dashboard.yml"
    rows = [{"record": f"panel_{n}", "expr": expression} for n, expression in enumerate(_expressions())]
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rows}]}))
    promtool("check", "rules", file)


def test_panels_have_ids_of_their_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in PANELS]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@pytest.mark.parametrize("panel", DRAWN, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    assert all(target["expr"] and target["legendFormat"] for target in panel["targets"])
    sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    assert {source["uid"] for source in sources} == {"${DS_PROMETHEUS}"}
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)


def test_the_dashboard_has_rows_and_variables() -> None:
    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == [
        "Overview",
        "Latency and stages",
        "Graph",
        "Freshness",
        "Workers, queue and batches",
        "Gateway",
    ]
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"DS_PROMETHEUS", "model", "version", "hop"}


def test_grafana_is_told_where_things_are() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "hopserve.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((folder / "dashboards" / "hopserve.yaml").read_text())["providers"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert provider["type"] == "file"


def test_every_alert_says_what_to_do() -> None:
    """And where more is said."""
    guide = (DEPLOY.parent / "docs" / "monitoring.md").read_text()
    anchors = {heading.lower() for heading in re.findall(r"^### (\w+)$", guide, re.MULTILINE)}
    assert anchors == {name.lower() for name in alerts()}
    for name, alert in alerts().items():
        assert alert["labels"]["severity"] in {"critical", "warning"}
        assert alert["annotations"]["runbook"] == f"docs/monitoring.md#{name.lower()}"
        assert alert["annotations"]["summary"].endswith(".")
        assert alert["annotations"]["action"].endswith(".")
