"""How many workers are planned for what is seen."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.autoscale.plan import Observation, ScaleState, plan
from gateway.autoscale.policy import ScalePolicy

_POLICY = ScalePolicy(max_workers=3, up_after_s=2, down_after_s=10, cool_down_s=5)
_BUSY_MS = 100.0


def _run(
    loads_ms: list[float], policy: ScalePolicy = _POLICY, workers: int = 1
) -> list[tuple[int, int, str]]:
    """Let workers follow one load a second; what was planned: when, how many, and why."""
    state, planned = ScaleState(), []
    for second, queue_ms in enumerate(loads_ms):
        seen = Observation(float(second), workers, workers, 0, queue_ms)
        following, state = plan(seen, state, policy)
        workers = following.num_workers
        planned.append((second, workers, following.reason))
    return planned


def test_a_load_that_lasts_adds_workers_one_after_the_other() -> None:
    assert [workers for _, workers, _ in _run([_BUSY_MS] * 12)] == [1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3]


def test_a_short_load_adds_none() -> None:
    assert {workers for _, workers, _ in _run([_BUSY_MS, _BUSY_MS, 0.0] * 10)} == {1}


def test_workers_go_when_there_has_been_little_to_do() -> None:
    planned = [workers for _, workers, _ in _run([0.0] * 30, workers=3)]
    assert planned == [3] * 10 + [2] * 11 + [1] * 9


def test_no_worker_goes_that_would_come_again() -> None:
    # Without one, half of the target would be passed.
    assert {workers for _, workers, _ in _run([8.0] * 100, workers=2)} == {2}
    assert _run([4.0] * 100, workers=2)[-1][1] == 1


@pytest.mark.parametrize(("workers", "wanted"), [(9, 3), (1, 2)])
def test_numbers_outside_of_the_bounds_are_mended_at_once(workers: int, wanted: int) -> None:
    policy = ScalePolicy(min_workers=2, max_workers=3)
    assert _run([0.0], policy, workers)[0][1] == wanted


def test_workers_that_start_are_waited_for() -> None:
    seen = Observation(100.0, workers=2, ready=1, pending=500, queue_ms=_BUSY_MS)
    planned, _ = plan(seen, ScaleState(above_since_s=0.0), _POLICY)
    assert planned.num_workers == 2
    assert "1 more start" in planned.reason


def test_a_long_queue_counts_as_well() -> None:
    seen = Observation(100.0, workers=2, ready=2, pending=200, queue_ms=0.0)
    planned, _ = plan(seen, ScaleState(above_since_s=90.0), _POLICY)
    assert planned.num_workers == 3
    assert planned.reason == (
        "requests wait 0 ms (target 20), 200 in the queue of 2 (target 64 each) for 10.0 s: 2 -> 3"
    )


@given(
    st.lists(st.floats(0, 1_000), max_size=200),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 20),
)
def test_bounds_hold_and_changes_keep_their_distance(
    loads_ms: list[float], low: int, more: int, cool_down_s: int
) -> None:
    policy = ScalePolicy(
        min_workers=low, max_workers=low + more, up_after_s=1, down_after_s=3, cool_down_s=cool_down_s
    )
    planned = _run(loads_ms, policy, workers=low)
    assert all(low <= workers <= low + more for _, workers, _ in planned)
    changes = [second for (_, before, _), (second, after, _) in pairwise(planned) if after != before]
    assert all(later - earlier >= cool_down_s for earlier, later in pairwise(changes))


@given(st.floats(0, 500))
def test_a_load_that_stays_settles(work_ms: float) -> None:
    # Waiting shrinks as workers share it.
    state, workers, numbers = ScaleState(), 1, []
    for second in range(300):
        seen = Observation(float(second), workers, workers, 0, work_ms / workers)
        planned, state = plan(seen, state, _POLICY)
        workers = planned.num_workers
        numbers.append(workers)
    assert len(set(numbers[150:])) == 1


def test_bounds_that_cross_are_refused() -> None:
    with pytest.raises(ValueError, match="min_workers is 3, which is above max_workers: 2"):
        ScalePolicy(min_workers=3, max_workers=2)


def _queue(arrivals_per_s: list[float], served_per_s: float, policy: ScalePolicy) -> list[int]:
    """The workers of a queue that empties itself at once until its workers have too much to do."""
    state, workers, waiting, numbers = ScaleState(), 1, 0.0, []
    for second, came in enumerate(arrivals_per_s):
        waiting = max(0.0, waiting + came - workers * served_per_s)
        queue_ms = 1_000 * waiting / (workers * served_per_s)
        seen = Observation(float(second), workers, workers, int(waiting), queue_ms, came)
        planned, state = plan(seen, state, policy)
        workers = planned.num_workers
        numbers.append(workers)
    return numbers


@given(st.floats(0, 290))
def test_a_load_that_stays_does_not_take_and_give_a_worker_for_ever(arrivals_per_s: float) -> None:
    numbers = _queue([arrivals_per_s] * 400, 100.0, _POLICY)
    assert sum(before != after for before, after in pairwise(numbers)) <= 2


def test_a_burst_that_still_waits_is_known_to_have_been_one() -> None:
    numbers = _queue([10.0] * 5 + [600.0] + [10.0] * 60, 100.0, _POLICY)
    assert max(numbers) > 1
    assert numbers[-1] == 1
