"""What the page is told of models, by the state of rollouts and by what TorchServe serves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gateway.console.sampling import Seen
from gateway.console.series import Points
from gateway.console.state import describe
from gateway.rollout.manifest import Event, Manifest, Model, Rollout, Version
from tests.gateway.console.fakes import ONE, served

_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_NO_POINTS = Points(1, [], {})


def _version(version: str, **changes: Any) -> Version:
    return Version(version=version, archive=f"sage-{version}.mar", registered_at=_AT, **changes)


_MODEL = Model(
    versions=(
        _version("0.9", state="retired"),
        _version("1.0", state="ready", weight=7_500, metrics={"test_accuracy": 0.97}),
        _version("2.0", state="missing", weight=2_500),
    ),
    rollout=Rollout(
        candidate="2.0",
        before={"1.0": 10_000},
        steps=(500, 2_500, 10_000),
        every_s=600,
        step=1,
        step_began=_AT,
    ),
    history=tuple(
        Event(at=_AT, what=f"event {number}", version="1.0", weights={"1.0": 10_000}) for number in range(200)
    ),
)


def _described(seen: Seen, points: Points = _NO_POINTS, **controller: Any) -> dict[str, Any]:
    return describe(Manifest(models={"sage": _MODEL}), controller, seen, points)


def test_versions_have_weights_and_workers() -> None:
    seen = Seen(workers=(served("sage", "1.0", pending=3),))
    one, two = _described(seen)["models"]["sage"]["versions"]
    assert (one["version"], one["weight"], one["metrics"]) == ("1.0", 0.75, {"test_accuracy": 0.97})
    assert (one["workers"]["ready"], one["workers"]["wanted"], one["workers"]["pending"]) == (1, 2, 3)
    assert [worker["status"] for worker in one["workers"]["listed"]] == ["READY", "LOADING"]
    assert (two["state"], two["weight"], two["workers"]["ready"]) == ("missing", 0.25, 0)


def test_workers_that_nobody_looked_at_are_not_known() -> None:
    one, two = _described(Seen())["models"]["sage"]["versions"]
    assert one["workers"] is two["workers"] is None


def test_what_takes_no_requests_of_the_gateway_is_shown_too() -> None:
    described = _described(Seen(workers=(served("graph", "1.0"),)))
    (graph,) = described["models"]["graph"]["versions"]
    assert (graph["version"], graph["state"], graph["workers"]["ready"]) == ("1.0", "not routed", 1)
    assert described["models"]["graph"]["rollout"] is None


def test_a_rollout_has_its_steps_and_the_present_decision() -> None:
    decision = {"action": "hold", "reason": "too few requests"}
    described = _described(Seen(envoy="away"), decisions={"sage": decision}, problems=["something"])
    sage = described["models"]["sage"]
    assert (sage["rollout"]["steps"], sage["rollout"]["step"]) == ([0.05, 0.25, 1.0], 1)
    assert sage["decision"] == decision
    assert (described["away"], described["problems"]) == (
        {"envoy": "away", "torchserve": None},
        ["something"],
    )


def test_the_newest_events_come_first_and_old_ones_are_left_out() -> None:
    events = _described(Seen())["models"]["sage"]["events"]
    assert [event["what"] for event in (events[0], events[-1])] == ["event 199", "event 100"]
    assert events[0]["weights"] == {"1.0": 1.0}


def test_points_are_by_model_and_version() -> None:
    points = Points(7, [10.0, 12.0], {ONE: {"rate": [1.0, None]}})
    described = _described(Seen(), points)
    assert (described["first"], described["last"], described["times_s"]) == (7, 8, [10.0, 12.0])
    assert described["models"]["sage"]["series"] == {"1.0": {"rate": [1.0, None]}}
