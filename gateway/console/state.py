"""Describes models, their rollouts and their versions, as the page shows them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.console.sampling import SAMPLE_S, WINDOW_S, Seen
from gateway.console.series import Points
from gateway.rollout.manifest import Manifest, Model, Version
from gateway.traffic import WHOLE
from gateway.upstream.client import ModelVersion

_MAX_EVENTS = 100


def describe(manifest: Manifest, controller: Mapping[str, Any], seen: Seen, points: Points) -> dict[str, Any]:
    """All that the page shows, as JSON.

    Args:
        controller: what it says of itself: its decisions and problems.
        points: those that the page does not have yet.
    """
    served = _served(seen.workers or ())
    names = sorted(manifest.models.keys() | served.keys())
    return {
        "now_s": time.time(),
        "sample_s": SAMPLE_S,
        "window_s": WINDOW_S,
        "away": {"envoy": seen.envoy, "torchserve": seen.torchserve},
        "problems": controller.get("problems", []),
        "first": points.first,
        "last": points.last,
        "times_s": points.times_s,
        "models": {
            name: {
                **_model(manifest.models.get(name, Model()), served.get(name, {}), seen.workers is not None),
                "decision": controller.get("decisions", {}).get(name),
                "series": {
                    version: kept for (owner, version), kept in points.values.items() if owner == name
                },
            }
            for name in names
        },
    }


def _served(workers: Sequence[ModelVersion]) -> dict[str, dict[str, ModelVersion]]:
    served: dict[str, dict[str, ModelVersion]] = {}
    for version in workers:
        served.setdefault(version.model_name, {})[version.model_version] = version
    return served


def _model(model: Model, served: Mapping[str, ModelVersion], looked: bool) -> dict[str, Any]:
    known = [version for version in model.versions if version.state != "retired"]
    versions = [_version(version, served.get(version.version), looked) for version in known]
    # The gateway does not send requests to those, such as the one that takes changes of a graph.
    others = sorted(served.keys() - {version.version for version in known})
    versions += [
        {"version": other, "archive": served[other].model_url, "state": "not routed", "weight": 0.0}
        | {"registered_at": None, "metrics": {}, "workers": _workers(served[other])}
        for other in others
    ]
    return {
        "versions": versions,
        "rollout": _rollout(model),
        "events": [_event(event) for event in reversed(model.history[-_MAX_EVENTS:])],
    }


def _version(version: Version, served: ModelVersion | None, looked: bool) -> dict[str, Any]:
    workers = _workers(served) if served is not None else None
    return {
        "version": version.version,
        "archive": version.archive,
        "state": version.state,
        "weight": version.weight / WHOLE,
        "registered_at": version.registered_at,
        "metrics": version.metrics,
        "workers": workers if workers is not None or not looked else {"listed": [], "ready": 0, "wanted": 0},
    }


def _workers(version: ModelVersion) -> dict[str, Any]:
    queue = version.job_queue_status
    return {
        "ready": version.num_ready,
        "wanted": version.min_workers,
        "listed": [msgspec.to_builtins(worker) for worker in version.workers],
        "pending": queue.pending_requests,
        "capacity": queue.pending_requests + queue.remaining_capacity,
        "batch_size": version.batch_size,
    }


def _rollout(model: Model) -> dict[str, Any] | None:
    rollout = model.rollout
    if rollout is None:
        return None
    return {
        "candidate": rollout.candidate,
        "phase": rollout.phase,
        "reason": rollout.reason,
        "step": rollout.step,
        "steps": [step / WHOLE for step in rollout.steps],
        "step_began": rollout.step_began,
        "every_s": rollout.every_s,
        "shadow_share": rollout.shadow_share,
    }


def _event(event: Any) -> dict[str, Any]:
    return {
        "at": event.at,
        "what": event.what,
        "version": event.version,
        "weights": {version: weight / WHOLE for version, weight in event.weights.items()},
        "reason": event.reason,
    }
