"""Rules are valid, and each alert fires on series that deserve it and on no others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.deploy.promtool import DEPLOY, RULES, alerts, needs_promtool, promtool, rules

pytestmark = needs_promtool

# Series by minute, as promtool writes them: `0+600x180` grows by 600 a minute, which are 10 a second.
Series = dict[str, str]

_V1 = 'model_name="m", model_version="1"'
_V2 = 'model_name="m", model_version="2"'
_UP = 'up{job="torchserve", instance="i"}'
_DONE = "envoy_cluster_upstream_rq_completed"
_FAILED = 'envoy_cluster_upstream_rq{response_code_class="5xx", %s}'
_CODE = 'envoy_cluster_upstream_rq{response_code="500", %s}'
_TRAFFIC = {f"{_DONE}{{{_V1}}}": "0+600x180"}
_LITTLE = {f"{_DONE}{{{_V1}}}": "0+6x180"}
_BOTH = {**_TRAFFIC, f"{_DONE}{{{_V2}}}": "0+600x180"}


def _of(name: str, values: str, labels: str = "", version: str = _V1) -> Series:
    return {f"{name}{{{', '.join(part for part in (labels, version) if part)}}}": values}


def _times(every: str, fast: str, version: str = _V1) -> Series:
    """So many requests per minute, `fast` of them within 10 ms and the others within 500 to 1000 ms."""
    name = "envoy_cluster_upstream_rq_time_bucket"
    return {
        **_of(name, f"0+{fast}x180", 'le="10"', version),
        **_of(name, f"0+{fast}x180", 'le="500"', version),
        **_of(name, f"0+{every}x180", 'le="1000"', version),
        **_of(name, f"0+{every}x180", 'le="+Inf"', version),
    }


def _trees(name: str, per_minute: int, before: int, after: int, labels: str = "") -> Series:
    """Trees per minute, and the mean of what is counted of each: for two hours, and from then on."""
    change, now = before * per_minute * 120, after * per_minute
    return {
        **_of(f"{name}_count", f"0+{per_minute}x180", labels),
        **_of(f"{name}_sum", f"0+{before * per_minute}x120 {change + now}+{now}x59", labels),
    }


def _neighbors(per_minute: int, before: int, after: int) -> Series:
    return {
        **_trees("hopserve_sampled_neighbors", per_minute, before, after, 'hop="1"'),
        **_of("hopserve_subgraph_edges_count", f"0+{per_minute}x180"),
    }


def _edges(per_minute: int, before: int, after: int) -> Series:
    return _trees("hopserve_subgraph_edges", per_minute, before, after)


def _queue(waited_ms: int) -> Series:
    return {
        **_of("ts_inference_requests_total", "0+600x180", 'hostname="h"'),
        **_of("ts_queue_latency_microseconds", f"0+{600 * waited_ms * 1000}x180", 'hostname="h"'),
    }


def _answers(name: str, per_minute: int, labels: str = "", nodes: int = 600) -> Series:
    """So many of something beside computed nodes."""
    return {
        **_of("hopserve_nodes_total", f"0+{nodes}x180", 'source="live"'),
        **_of("hopserve_subgraph_edges_count", f"0+{nodes}x180"),
        **_of("hopserve_forwards_total", f"0+{nodes}x180"),
        **_of(name, f"0+{per_minute}x180", labels),
    }


def _degraded(per_minute: int) -> Series:
    labels = 'model="m", version="1", kind="precomputed"'
    return {f"hopserve_degraded_answers_total{{{labels}}}": f"0+{per_minute}x180"}


_WORKERS = {**_TRAFFIC, _UP: "1x180"}
_LAG, _SEQ, _WORKER = "hopserve_graph_lag_mutations", "hopserve_graph_seq", 'worker="9000"'
_LOADED = 'WorkerLoadTime{WorkerName="W-9000-m_1", Level="Host"}'
_OVERFLOW = (
    "envoy_cluster_upstream_rq_pending_overflow",
    "envoy_cluster_upstream_rq_active_overflow",
)


@dataclass(frozen=True)
class Case:
    """Series on which an alert fires, and all those on which it does not."""

    fires: Series
    quiet: tuple[Series, ...]
    version: str = "1"


CASES = {
    "HopserveTargetDown": Case({_UP: "1x170 0x10"}, ({_UP: "1x180"}, {_UP: "1x178 0"})),
    "HopserveNoWorker": Case(
        _WORKERS | _of("hopserve_requests_total", "0+600x170 102000x10", 'status="200"'),
        (
            _WORKERS | _of("hopserve_requests_total", "0+600x180", 'status="200"'),
            # Nobody asks; and nobody knows.
            {**_LITTLE, _UP: "1x180"},
            {**_TRAFFIC, _UP: "0x180"},
        ),
    ),
    "HopserveWorkersRestart": Case(
        {_LOADED: "9000x170 9100 9200 9300 9300x7"}, ({_LOADED: "9000x170 9100x10"},)
    ),
    "HopserveErrors": Case(
        _TRAFFIC | {_FAILED % _V1: "0+18x180", _CODE % _V1: "0+18x180"},
        (
            _TRAFFIC,
            # 1.5%, which would be 3% if codes and classes were added.
            _TRAFFIC | {_FAILED % _V1: "0+9x180", _CODE % _V1: "0+9x180"},
            _LITTLE | {_FAILED % _V1: "0+6x180"},
            {f"{_DONE}{{{_V1}}}": "5x180", _FAILED % _V1: "5x180"},
        ),
    ),
    "HopserveSlow": Case(
        _TRAFFIC | _times("600", "580"),
        (_TRAFFIC | _times("600", "598"), _LITTLE | _times("6", "3"), _TRAFFIC | _times("0", "0")),
    ),
    "HopserveQueue": Case(_queue(150), (_queue(20),)),
    "HopservePending": Case(
        _of("envoy_cluster_upstream_rq_pending_active", "0x170 100x10"),
        (_of("envoy_cluster_upstream_rq_pending_active", "0x170 10x10"),),
    ),
    "HopserveRefused": Case(
        _of(_OVERFLOW[0], "0x180") | _of(_OVERFLOW[1], "0+60x180"),
        (_of(_OVERFLOW[0], "7x180") | _of(_OVERFLOW[1], "0x180"),),
    ),
    "HopserveDegraded": Case(
        _TRAFFIC | _degraded(60), (_TRAFFIC | _degraded(0), _TRAFFIC | _degraded(3), _LITTLE | _degraded(3))
    ),
    "HopserveVersionRests": Case(
        _of("envoy_cluster_outlier_detection_ejections_active", "0x177 1 0 0"),
        (_of("envoy_cluster_outlier_detection_ejections_active", "0x160 1 0x20"),),
    ),
    "HopserveVersionErrs": Case(
        _BOTH | {_FAILED % _V2: "0+9x180"},
        (
            # As often as each other; one version alone; and too few to say so.
            _BOTH | {_FAILED % _V1: "0+9x180", _FAILED % _V2: "0+9x180"},
            _TRAFFIC | {_FAILED % _V1: "0+9x180"},
            _TRAFFIC | {f"{_DONE}{{{_V2}}}": "0+6x180", _FAILED % _V2: "0+3x180"},
        ),
        version="2",
    ),
    "HopserveVersionSlower": Case(
        _BOTH | _times("600", "600") | _times("600", "580", _V2),
        (
            _BOTH | _times("600", "580") | _times("600", "580", _V2),
            _TRAFFIC | {f"{_DONE}{{{_V2}}}": "0+6x180"} | _times("600", "600") | _times("6", "3", _V2),
        ),
        version="2",
    ),
    "HopserveFewNeighbors": Case(
        _neighbors(600, 10, 4), (_neighbors(600, 10, 6), _neighbors(6, 10, 4), _neighbors(600, 0, 0))
    ),
    "HopserveManyEdges": Case(_edges(600, 100, 250), (_edges(600, 100, 180), _edges(6, 100, 250))),
    "HopserveTruncated": Case(
        _answers("hopserve_truncated_total", 60),
        (_answers("hopserve_truncated_total", 6), _answers("hopserve_truncated_total", 6, nodes=6)),
    ),
    "HopserveUnknownNodes": Case(
        _answers("hopserve_errors_total", 300, 'code="unknown_node"'),
        (
            _answers("hopserve_errors_total", 60, 'code="unknown_node"'),
            _answers("hopserve_errors_total", 300, 'code="malformed"'),
            _answers("hopserve_errors_total", 6, 'code="unknown_node"', nodes=6),
        ),
    ),
    "HopserveGraphLag": Case(_of(_LAG, "0x170 5000x10", _WORKER), (_of(_LAG, "0x179 5000", _WORKER),)),
    "HopserveGraphStuck": Case(
        _of(_LAG, "3x180", _WORKER) | _of(_SEQ, "70x180", _WORKER),
        (
            _of(_LAG, "3x180", _WORKER) | _of(_SEQ, "0+1x180", _WORKER),
            _of(_LAG, "0x180", _WORKER) | _of(_SEQ, "70x180", _WORKER),
        ),
    ),
    "HopserveOverlayLarge": Case(
        _of("hopserve_overlay_bytes", "3000000000x180", _WORKER),
        (_of("hopserve_overlay_bytes", "1000000000x180", _WORKER),),
    ),
    "HopserveOutOfMemory": Case(
        # The series begins with the first one.
        _of("hopserve_out_of_memory_total", "_x175 1x4"),
        (
            _of("hopserve_out_of_memory_total", "1x180"),
            _of("hopserve_out_of_memory_total", "0x100 1x80"),
        ),
    ),
    "HopserveForwardsFail": Case(
        _answers("hopserve_failed_forwards_total", 60), (_answers("hopserve_failed_forwards_total", 1),)
    ),
    "HopserveCacheFails": Case(
        _answers("hopserve_cache_failures_total", 300, 'reason="timeout"'),
        (
            _answers("hopserve_cache_failures_total", 6, 'reason="timeout"'),
            _answers("hopserve_cache_failures_total", 6, 'reason="timeout"', nodes=6),
        ),
    ),
}
_QUIET = tuple((name, n) for name, case in CASES.items() for n in range(len(case.quiet)))


def _check(folder: Path, series: Series, expression: str, value: int | None) -> None:
    """What an expression is after three hours of the series."""
    samples = [] if value is None else [{"labels": "{}", "value": value}]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expression, "eval_time": "179m", "exp_samples": samples}],
    }
    file = folder / "test.yml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]})
    )
    promtool("test", "rules", file)


def _firing(alert: str, more: str = "") -> str:
    return f'count(ALERTS{{alertname="{alert}", alertstate="firing"{more}}})'


def test_the_configuration_is_valid() -> None:
    promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")


def test_rules_are_valid() -> None:
    promtool("check", "rules", RULES)


def test_every_alert_is_tested() -> None:
    assert CASES.keys() == alerts().keys()


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_on_what_deserves_it(alert: str, tmp_path: Path) -> None:
    """Once, and it says of which version, unless it is not about one."""
    case = CASES[alert]
    more = "" if alert == "HopserveTargetDown" else f', model_name="m", model_version="{case.version}"'
    _check(tmp_path, case.fires, f"{_firing(alert)} == {_firing(alert, more)}", 1)


@pytest.mark.parametrize(("alert", "quiet"), _QUIET)
def test_an_alert_does_not_fire_on_what_does_not(alert: str, quiet: int, tmp_path: Path) -> None:
    _check(tmp_path, CASES[alert].quiet[quiet], _firing(alert), None)


def test_on_a_good_day_nothing_fires(tmp_path: Path) -> None:
    day = {
        **_WORKERS,
        **_of("hopserve_requests_total", "0+600x180", 'status="200"'),
        **_times("600", "600"),
        **_queue(2),
        **_answers("hopserve_truncated_total", 0),
        **_neighbors(600, 10, 10),
        **_edges(600, 100, 100),
        **_of(_LAG, "0x180", _WORKER),
        **_of(_SEQ, "0+60x180", _WORKER),
    }
    _check(tmp_path, day, "count(ALERTS)", None)


def test_nothing_is_recorded_where_nothing_happened(tmp_path: Path) -> None:
    """No NaN, which would spoil averages over it."""
    still = {
        **_of(_DONE, "5x180"),
        **_of("hopserve_subgraph_edges_count", "5x180"),
        **_of("hopserve_subgraph_edges_sum", "5x180"),
        **_of("hopserve_stage_microseconds_bucket", "5x180", 'stage="forward", le="+Inf"'),
        **_of("hopserve_stage_microseconds_count", "5x180", 'stage="forward"'),
        **_of("hopserve_nodes_total", "5x180", 'source="live"'),
        **_of("envoy_cluster_upstream_rq_time_bucket", "5x180", 'le="+Inf"'),
        **_of("ts_inference_requests_total", "5x180"),
        **_of("ts_queue_latency_microseconds", "5x180"),
    }
    ratios = [
        rule["record"]
        for rule in rules()
        if any(how in rule.get("record", "") for how in ("share", "mean", "p50", "p95", "p99", "usual"))
    ]
    _check(tmp_path, still, f'count({{__name__=~"{"|".join(ratios)}"}})', None)


def test_a_version_is_judged_by_what_is_usual_for_it(tmp_path: Path) -> None:
    """An hour after it came, and not before."""
    _check(tmp_path, _edges(600, 100, 100), 'sum(version:edges:usual{model_version="1"})', 100)
    new = _of("hopserve_subgraph_edges_count", "_x130 0+600x49") | _of(
        "hopserve_subgraph_edges_sum", "_x130 0+60000x49"
    )
    _check(tmp_path, new, "sum(version:edges:usual)", None)
