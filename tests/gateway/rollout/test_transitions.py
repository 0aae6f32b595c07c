"""How rollouts move from state to state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import RolloutError
from gateway.rollout import transitions
from gateway.rollout.manifest import Manifest, Model, Version
from gateway.rollout.rollouts import traffic_of
from gateway.traffic import WHOLE

_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_LATER = _AT + timedelta(minutes=10)


def _version(name: str, **changes: Any) -> Version:
    return Version(version=name, archive=f"graphsage-{name}.mar", registered_at=_AT, **changes)


def _model(**weights: int) -> Model:
    """Ready versions with these weights, named as v1_0."""
    return Model(
        versions=tuple(
            _version(name.removeprefix("v").replace("_", "."), state="ready", weight=weight)
            for name, weight in weights.items()
        )
    )


def _started(*steps: int, **options: Any) -> Model:
    return transitions.start(_model(v1_0=WHOLE, v2_0=0), "2.0", steps or (500, WHOLE), 600, _AT, **options)


def test_the_first_version_that_is_ready_gets_all_traffic() -> None:
    model = transitions.register(Model(), _version("1.0"))
    assert model.weights == {}
    assert transitions.become(model, "1.0", "ready", _AT).weights == {"1.0": WHOLE}


def test_further_versions_get_none() -> None:
    model = transitions.register(_model(v1_0=WHOLE), _version("2.0"))
    assert transitions.become(model, "2.0", "ready", _AT).weights == {"1.0": WHOLE}
    with pytest.raises(RolloutError, match="2.0 is registered already"):
        transitions.register(model, _version("2.0"))


def test_a_version_that_cannot_be_loaded_is_gone() -> None:
    model = transitions.register(_model(v1_0=WHOLE), _version("2.0"))
    forgotten = transitions.forget(model, "2.0", _LATER, "no graph")
    assert forgotten.find("2.0") is None
    assert (forgotten.history[-1].what, forgotten.history[-1].reason) == ("failed", "no graph")


def test_a_rollout_goes_step_by_step_until_all_is_the_new_versions() -> None:
    model = _started(500, 2_500, WHOLE)
    assert model.weights == {"1.0": 9_500, "2.0": 500}
    model = transitions.advance(model, _LATER, "good")
    assert model.weights == {"1.0": 7_500, "2.0": 2_500}
    assert model.rollout is not None
    assert model.rollout.step_began == _LATER
    model = transitions.advance(model, _LATER, "good")
    assert model.weights == {"2.0": WHOLE}
    assert model.rollout is not None
    assert model.rollout.is_active, "it is watched until its last step is over"
    model = transitions.advance(model, _LATER, "good")
    assert [event.what for event in model.history] == ["started", "advanced", "advanced", "promoted"]
    with pytest.raises(RolloutError, match="no rollout is on"):
        transitions.advance(model, _LATER, "again")


def test_a_rollout_up_to_some_weight_can_be_continued() -> None:
    model = transitions.advance(_started(1_000), _LATER, "good")
    assert (model.history[-1].what, model.weights) == ("completed", {"1.0": 9_000, "2.0": 1_000})
    model = transitions.start(model, "2.0", (500, 1_000, 5_000, WHOLE), 600, _LATER)
    assert model.weights == {"1.0": 5_000, "2.0": 5_000}
    assert transitions.roll_back(model, _LATER, "bad").weights == {"1.0": WHOLE}


@pytest.mark.parametrize("num_advances", [0, 1, 2])
def test_a_rollback_gives_the_weights_of_before(num_advances: int) -> None:
    model = _started(500, WHOLE)
    for _ in range(num_advances):
        model = transitions.advance(model, _LATER, "good")
    model = transitions.roll_back(model, _LATER, "bad")
    assert model.weights == {"1.0": WHOLE}
    assert model.history[-1].reason == "bad"
    with pytest.raises(RolloutError, match="went back already"):
        transitions.roll_back(model, _LATER, "bad")


def test_what_was_promoted_by_hand_can_go_back() -> None:
    model = transitions.promote(_started(500, WHOLE), _LATER, "by hand")
    assert model.weights == {"2.0": WHOLE}
    assert transitions.roll_back(model, _LATER, "by hand").weights == {"1.0": WHOLE}


def test_a_pause_keeps_the_step_and_does_not_keep_from_going_back() -> None:
    model = transitions.pause(_started(500, WHOLE), _AT, "lunch")
    assert model.weights == {"1.0": 9_500, "2.0": 500}
    with pytest.raises(RolloutError, match="paused already"):
        transitions.pause(model, _AT, "lunch")
    resumed = transitions.resume(model, _LATER, "back")
    assert resumed.rollout is not None
    assert (resumed.rollout.phase, resumed.rollout.step_began) == ("running", _LATER)
    assert transitions.roll_back(model, _LATER, "bad").weights == {"1.0": WHOLE}


def test_a_shadow_takes_copies_before_it_takes_traffic() -> None:
    model = _started(500, WHOLE, shadow_share=0.2)
    assert model.weights == {"1.0": WHOLE}
    (traffic,) = traffic_of(Manifest(models={"graphsage": model})).models
    assert (traffic.shadow, traffic.shadow_share, traffic.compared_share) == ("2.0", 0.2, 1.0)
    model = transitions.advance(model, _LATER, "good")
    (traffic,) = traffic_of(Manifest(models={"graphsage": model})).models
    assert (traffic.shadow, model.weights) == (None, {"1.0": 9_500, "2.0": 500})


@pytest.mark.parametrize(
    ("steps", "version", "message"),
    [
        ((500,), "3.0", "there is no version 3.0: there are 1.0, 2.0"),
        ((500,), "1.0", "1.0 has all traffic already"),
        ((500, 400), "2.0", "the steps must grow"),
        ((500, 500), "2.0", "the steps must grow"),
    ],
)
def test_what_makes_no_sense_is_refused(steps: tuple[int, ...], version: str, message: str) -> None:
    with pytest.raises(RolloutError, match=message):
        transitions.start(_model(v1_0=WHOLE, v2_0=0), version, steps, 600, _AT)


def test_one_rollout_at_a_time() -> None:
    with pytest.raises(RolloutError, match="the rollout of 2.0 is running: promote it or roll it back first"):
        transitions.start(_started(), "2.0", (WHOLE,), 600, _AT)


def test_a_version_can_be_preferred_without_a_rollout() -> None:
    assert transitions.prefer(_model(v1_0=WHOLE, v2_0=0), "2.0", _AT).weights == {"2.0": WHOLE}
    with pytest.raises(RolloutError, match="the rollout of 2.0 is on"):
        transitions.prefer(_started(), "1.0", _AT)
    missing = transitions.become(_model(v1_0=WHOLE, v2_0=0), "2.0", "missing", _AT)
    with pytest.raises(RolloutError, match="2.0 is not ready"):
        transitions.prefer(missing, "2.0", _AT)


def test_a_version_with_traffic_is_not_retired() -> None:
    with pytest.raises(RolloutError, match="1.0 takes 100% of the traffic"):
        transitions.retire(_model(v1_0=WHOLE, v2_0=0), "1.0", _AT)
    with pytest.raises(RolloutError, match="2.0 is being rolled out"):
        transitions.retire(_started(500, shadow_share=0.5), "2.0", _AT)
    retired = transitions.retire(_model(v1_0=WHOLE, v2_0=0), "2.0", _AT)
    (traffic,) = traffic_of(Manifest(models={"graphsage": retired})).models
    assert [version.version for version in traffic.versions] == ["1.0"]


def test_nothing_goes_back_to_a_version_that_is_gone() -> None:
    model = transitions.promote(_started(WHOLE), _AT, "by hand")
    model = transitions.retire(model, "1.0", _AT)
    with pytest.raises(RolloutError, match="none of the versions before is ready: 1.0"):
        transitions.roll_back(model, _AT, "bad")


def test_a_missing_version_with_traffic_is_still_routed_to() -> None:
    model = transitions.become(_model(v1_0=WHOLE, v2_0=0), "1.0", "missing", _AT)
    (traffic,) = traffic_of(Manifest(models={"graphsage": model})).models
    assert [(version.version, version.weight) for version in traffic.versions] == [("1.0", WHOLE), ("2.0", 0)]


_STEPS = st.lists(st.integers(1, WHOLE), min_size=1, max_size=5, unique=True).map(sorted)
_MOVES = ("advance", "promote", "pause", "resume", "roll_back", "start", "retire")


@given(st.lists(st.integers(1, 100), min_size=1, max_size=4), _STEPS, st.lists(st.sampled_from(_MOVES)))
def test_weights_are_always_whole(shares: list[int], steps: list[int], moves: list[str]) -> None:
    weights = transitions._whole({f"v{number}_0": share for number, share in enumerate(shares)})
    model = _model(**weights, v9_0=0)
    for move in ("start", *moves):
        try:
            if move == "start":
                model = transitions.start(model, "9.0", steps, 600, _AT)
            elif move == "retire":
                model = transitions.retire(model, "0.0", _AT)
            else:
                model = getattr(transitions, move)(model, _AT, "because")
        except RolloutError:
            continue
        assert sum(model.weights.values()) == WHOLE
        assert model.history[-1].weights == model.weights


def test_only_models_that_are_served_are_routed_to() -> None:
    manifest = Manifest(models={"fraud": _model(v1_0=WHOLE), "graphsage": _model(v1_0=WHOLE)})
    assert [model.model for model in traffic_of(manifest).models] == ["fraud", "graphsage"]
    assert [model.model for model in traffic_of(manifest, ("fraud",)).models] == ["fraud"]
