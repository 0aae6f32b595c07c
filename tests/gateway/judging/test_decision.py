"""When a rollout goes on, waits and goes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.judging.decision import Comparison, Decision, Names, after_deadline, decide
from gateway.judging.policy import Policy
from gateway.judging.windows import Latencies, Window

_BOUNDS = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0, 200.0)
_POLICY = Policy(min_compared=50)


def _window(requests: int, errors: int = 0, slow: int = 0, seconds: float = 10) -> Window:
    """Requests that take 4 ms, but for the slow ones, which take 40."""
    counts = [0] * (len(_BOUNDS) + 1)
    counts[3], counts[9] = requests - slow, slow
    return Window(seconds, requests, errors, 0, Latencies(_BOUNDS, tuple(counts)))


def _decide(baseline: Window | None, candidate: Window | None, **options: Any) -> Decision:
    comparison = options.pop("comparison", None)
    policy = options.pop("policy", _POLICY)
    names = Names("v1", "v2")
    return decide(baseline, candidate, comparison, policy, **({"step_done": True, "names": names} | options))


def _comparison(**changes: Any) -> Comparison:
    same: dict[str, Any] = {"compared": 100, "failed": 0, "labels_compared": 100, "labels_differ": 0}
    return Comparison(**(same | {"similarity": 1.0, "similarity_upper": 1.0} | changes))


def test_what_is_as_good_goes_on() -> None:
    decision = _decide(_window(4_500), _window(500), comparison=_comparison())
    assert decision.action == "advance"
    assert decision.reason == (
        "v2 errs in 0% of 500 requests, v1 in 0% of 4,500; p99 is v2's 4.98 ms and v1's 4.98 ms;"
        " the similarity of 100 embeddings is 1.00; 0% of 100 labels differ"
    )


def test_a_step_lasts_its_time_and_has_enough_requests() -> None:
    assert _decide(_window(4_500), _window(500), step_done=False).action == "hold"
    few = _decide(_window(4_500), _window(99))
    assert (few.action, few.reason) == ("hold", "v2 has answered 99 of 100 requests that are needed")
    assert _decide(_window(4_500), None).action == "hold"
    assert _decide(None, None).action == "hold"


def test_a_step_waits_as_long_as_it_may() -> None:
    policy = Policy(max_hold_s=60)
    waits = _decide(_window(4_500), _window(99), policy=policy)
    assert after_deadline(waits, Policy(), 1e9) is waits
    assert after_deadline(waits, policy, 60) is waits
    late = after_deadline(waits, policy, 60.1)
    assert late.action == "roll_back"
    assert late.reason == (
        "the step has not shown within 60 s that it may end:"
        " v2 has answered 99 of 100 requests that are needed"
    )
    done = _decide(_window(4_500), _window(500), policy=policy)
    assert after_deadline(done, policy, 1e9) is done


def test_too_few_comparisons_are_waited_for() -> None:
    decision = _decide(_window(4_500), _window(500), comparison=_comparison(compared=49))
    assert (decision.action, decision.reason) == (
        "hold",
        "49 of 50 nodes that are needed have been compared",
    )


@pytest.mark.parametrize(
    ("baseline", "candidate", "said"),
    [
        (_window(900), _window(60, errors=6), "v2 errs in 10% of 60 requests"),
        (_window(10_000, errors=100), _window(2_000, errors=100), "v2 errs in 5%"),
        (_window(4_500), _window(200, slow=20), "p99 is v2's"),
        (None, _window(500, errors=50), "v2 errs in 10% of 500 requests"),
        (_window(0), _window(500, errors=50), "v2 errs in 10% of 500 requests"),
    ],
)
def test_a_breach_goes_back_at_once(baseline: Window | None, candidate: Window, said: str) -> None:
    decision = _decide(baseline, candidate, step_done=False)
    assert decision.action == "roll_back", decision
    assert decision.reason.startswith(said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"failed": 15}, "v2 fails to answer 15% of 100 compared nodes"),
        ({"labels_differ": 40}, "v2 labels 40% of 100 nodes otherwise than v1"),
        ({"similarity": 0.2, "similarity_upper": 0.4}, "the similarity of v2's embeddings to v1's is 0.20"),
    ],
)
def test_answers_that_differ_go_back_at_once(changes: dict[str, Any], said: str) -> None:
    decision = _decide(_window(900), _window(100), comparison=_comparison(**changes), step_done=False)
    assert decision.action == "roll_back", decision
    assert decision.reason.startswith(said)


@pytest.mark.parametrize(
    ("candidate", "changes"),
    [
        (_window(100, errors=3), {}),
        (_window(100), {"failed": 3}),
        (_window(100), {"similarity": 0.85, "similarity_upper": 0.95}),
    ],
)
def test_what_may_be_chance_holds(candidate: Window, changes: dict[str, Any]) -> None:
    decision = _decide(_window(900), candidate, comparison=_comparison(**changes))
    assert decision.action == "hold"


def test_what_was_bad_before_is_no_fault_of_the_new() -> None:
    policy = Policy(max_error_rate=0.5)
    both = _decide(_window(9_000, errors=1_800, slow=3_000), _window(1_000, 200, 300), policy=policy)
    assert both.action != "roll_back"


def test_similarity_and_labels_need_not_be_judged() -> None:
    policy = Policy(min_similarity=0, max_label_disagreement=1, min_compared=50)
    comparison = _comparison(similarity=0.0, similarity_upper=0.0, labels_differ=100)
    assert _decide(_window(900), _window(100), comparison=comparison, policy=policy).action == "advance"


@given(st.integers(1, 2_000), st.integers(0, 2_000), st.integers(0, 100), st.integers(0, 5_000))
def test_more_errors_are_never_better(requests: int, errors: int, more: int, base: int) -> None:
    errors = min(errors, requests)
    worse = min(errors + more, requests)
    order = {"roll_back": 0, "hold": 1, "advance": 2}
    baseline = _window(base)
    better = _decide(baseline, _window(requests, errors)).action
    assert order[_decide(baseline, _window(requests, worse)).action] <= order[better]


def _first_rollback_s(rng: np.random.Generator, error_rate: float, slow_rate: float) -> float | None:
    """When a version is taken back, looked at four times a second for a minute, at 20 requests a second."""
    counts = np.zeros(6, dtype=int)
    for look in range(1, 241):
        came = 5
        counts += [
            came * 9,
            rng.binomial(came * 9, 0.002),
            rng.binomial(came * 9, 0.001),
            came,
            rng.binomial(came, error_rate),
            rng.binomial(came, slow_rate),
        ]
        base, base_errors, base_slow, requests, errors, slow = (int(count) for count in counts)
        decision = _decide(
            _window(base, base_errors, base_slow), _window(requests, errors, slow), step_done=False
        )
        if decision.action == "roll_back":
            return look / 4
    return None


def test_a_version_that_is_as_good_is_hardly_ever_taken_back() -> None:
    """However often it is looked at: 0.01 of the rollouts at most, of 100 that would be 1 or a few more."""
    rng = np.random.default_rng(0)
    assert sum(_first_rollback_s(rng, 0.002, 0.001) is not None for _ in range(100)) <= 3


@pytest.mark.parametrize(("error_rate", "slow_rate"), [(0.1, 0.001), (0.002, 0.5)])
def test_a_bad_version_is_taken_back_soon(error_rate: float, slow_rate: float) -> None:
    rng = np.random.default_rng(0)
    found = [_first_rollback_s(rng, error_rate, slow_rate) for _ in range(20)]
    assert None not in found
    assert np.median([seconds for seconds in found if seconds]) <= 8
