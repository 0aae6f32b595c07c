"""Reads what Envoy has counted of each version."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.envoy.admin import Admin
from gateway.judging.windows import Latencies, Totals

VersionName = tuple[str, str]
# Those of versions' clusters, whose names have an @.
_PATTERN = r"^cluster\..*@.*\.upstream_rq_(completed|5xx|time)$"
_REQUESTS = "envoy_cluster_upstream_rq_completed"
_ERRORS = "envoy_cluster_upstream_rq"  # of which the pattern leaves only those with 500 to 599
_TIMES = "envoy_cluster_upstream_rq_time"


def observe(admin: Admin, degraded: Mapping[VersionName, int]) -> dict[VersionName, Totals]:
    """The counters of every version, by model and version.

    Args:
        degraded: how many degraded answers with a good status there were, which Envoy does not tell from
            others.

    Raises:
        GatewayError: Envoy does not answer.
    """
    return totals_of(admin.prometheus(_PATTERN), degraded, time.monotonic())


def totals_of(text: str, degraded: Mapping[VersionName, int], at_s: float) -> dict[VersionName, Totals]:
    """The same, of Prometheus' text."""
    families = {family.name: family for family in text_string_to_metric_families(text)}
    requests = _sums(families.get(_REQUESTS))
    errors = _sums(families.get(_ERRORS))
    times = _histograms(families.get(_TIMES))
    bounds = next((latencies.bounds_ms for latencies in times.values()), (1.0,))
    return {
        version: Totals(
            at_s=at_s,
            requests=count,
            errors=errors.get(version, 0),
            degraded=degraded.get(version, 0),
            latencies=times.get(version, Latencies.empty(bounds)),
        )
        for version, count in requests.items()
    }


def _sums(family: Metric | None) -> dict[VersionName, int]:
    sums: dict[VersionName, int] = {}
    for sample in family.samples if family is not None else ():
        version = _version_of(sample.labels)
        sums[version] = sums.get(version, 0) + int(sample.value)
    return sums


def _histograms(family: Metric | None) -> dict[VersionName, Latencies]:
    buckets: dict[VersionName, dict[float, int]] = {}
    for sample in family.samples if family is not None else ():
        if sample.name.endswith("_bucket"):
            version = buckets.setdefault(_version_of(sample.labels), {})
            version[float(sample.labels["le"])] = int(sample.value)
    return {version: _latencies(sorted(counts.items())) for version, counts in buckets.items()}


def _latencies(buckets: Iterable[tuple[float, int]]) -> Latencies:
    """Counts of buckets, out of those that Prometheus adds up from the lowest bound on."""
    bounds, sums = zip(*buckets, strict=True)
    counts = [after - before for before, after in zip((0, *sums), sums, strict=False)]
    return Latencies(tuple(bounds[:-1]), tuple(counts))


def _version_of(labels: Mapping[str, str]) -> VersionName:
    return labels.get("model_name", ""), labels.get("model_version", "")
