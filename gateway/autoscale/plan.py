"""Plans how many workers a version should have, from what is seen of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.autoscale.policy import ScalePolicy


@dataclass(frozen=True)
class Observation:
    """What is seen of a version.

    Args:
        at_s: when, by a monotonic clock.
        workers: that TorchServe is told to run.
        ready: those of them that take requests; others start, at first or after they died.
        pending: requests in its queue now.
        queue_ms: how long requests waited there since the last time, on average.
        requests_per_s: that came since then.
    """

    at_s: float
    workers: int
    ready: int
    pending: int
    queue_ms: float
    requests_per_s: float = 0.0


@dataclass(frozen=True)
class ScaleState:
    """What is remembered of a version from one time to the next.

    Args:
        above_since_s, below_since_s: since when it has had too few workers, or too many; None: it has not.
        changed_s: when its workers were last changed.
        busiest: of the looks since it has had too few, that with the most requests.
        too_much: the busiest look before a worker was added the last time.
    """

    above_since_s: float | None = None
    below_since_s: float | None = None
    changed_s: float | None = None
    busiest: Observation | None = None
    too_much: Observation | None = None


@dataclass(frozen=True)
class ScalePlan:
    """How many workers a version should have, and in one sentence why."""

    num_workers: int
    reason: str


def plan(seen: Observation, state: ScaleState, policy: ScalePolicy) -> tuple[ScalePlan, ScaleState]:
    """What to do now, and what to remember of it.

    Workers that start count as if they were ready: a load that they will carry adds no further ones.
    """
    bounded = min(max(seen.workers, policy.min_workers), policy.max_workers)
    if bounded != seen.workers:
        planned = _to(seen, bounded, f"not within {policy.min_workers} and {policy.max_workers}")
        return planned, ScaleState(changed_s=seen.at_s, too_much=state.too_much)
    state = _noted(seen, state, policy)
    if state.changed_s is not None and (passed_s := seen.at_s - state.changed_s) < policy.cool_down_s:
        planned = _to(seen, seen.workers, f"{passed_s:.0f} of {policy.cool_down_s:g} s since the last change")
    elif state.above_since_s is not None:
        planned = _up(seen, seen.at_s - state.above_since_s, policy)
    elif state.below_since_s is not None and seen.workers > policy.min_workers:
        planned = _down(seen, seen.at_s - state.below_since_s, policy)
    else:
        planned = _to(seen, seen.workers, _load_in_words(seen, policy))
    is_change = planned.num_workers != seen.workers
    if not is_change:
        return planned, state
    too_much = state.busiest if planned.num_workers > seen.workers else state.too_much
    return planned, ScaleState(changed_s=seen.at_s, too_much=too_much)


def _up(seen: Observation, lasted_s: float, policy: ScalePolicy) -> ScalePlan:
    load = _load_in_words(seen, policy)
    if seen.ready < seen.workers:
        return _to(seen, seen.workers, f"{load}, and {seen.workers - seen.ready} more start")
    if seen.workers == policy.max_workers:
        return _to(seen, seen.workers, f"{load}, but no more workers are allowed")
    if lasted_s < policy.up_after_s:
        return _to(seen, seen.workers, f"{load} for {lasted_s:.1f} of {policy.up_after_s:g} s")
    return _to(seen, seen.workers + 1, f"{load} for {lasted_s:.1f} s")


def _down(seen: Observation, lasted_s: float, policy: ScalePolicy) -> ScalePlan:
    if lasted_s < policy.down_after_s:
        return _to(seen, seen.workers, f"one fewer would do, for {lasted_s:.0f} of {policy.down_after_s:g} s")
    return _to(seen, seen.workers - 1, f"one fewer would do, for {lasted_s:.0f} s")


def _noted(seen: Observation, state: ScaleState, policy: ScalePolicy) -> ScaleState:
    is_above = _pressure(seen, policy, seen.workers) > 1
    without_one = max(1, seen.workers - 1)
    is_below = (
        not is_above
        and _pressure(seen, policy, without_one) < policy.idle_ratio
        and _is_known_to_do(seen, without_one, state.too_much, policy)
    )
    # A burst can be over, and still be waiting, when a worker is added for it.
    busiest = max(seen, state.busiest or seen, key=lambda look: look.requests_per_s)
    return replace(
        state,
        busiest=busiest if is_above else None,
        above_since_s=_since(state.above_since_s, seen) if is_above else None,
        below_since_s=_since(state.below_since_s, seen) if is_below else None,
    )


def _is_known_to_do(
    seen: Observation, workers: int, too_much: Observation | None, policy: ScalePolicy
) -> bool:
    """Whether so many workers would have clearly less each than when there were too few the last time.

    How long requests wait does not tell: the queue of two workers can be empty, and too long without one of
    them. So a load that stays would take and give the same worker for ever.
    """
    if too_much is None:
        return True
    bearable_per_s = policy.idle_ratio * too_much.requests_per_s / too_much.workers
    return seen.requests_per_s <= bearable_per_s * workers


def _since(known_s: float | None, seen: Observation) -> float:
    return seen.at_s if known_s is None else known_s


def _pressure(seen: Observation, policy: ScalePolicy, workers: int) -> float:
    """The larger of both loads, as parts of their targets, if there were so many workers.

    Waiting is taken to be in proportion to the load of each worker: in truth it grows faster, which is what
    the distance between 1 and `idle_ratio` is for.
    """
    waiting = seen.queue_ms / policy.target_queue_ms
    pending = seen.pending / seen.workers / policy.target_pending
    return max(waiting, pending) * seen.workers / workers


def _load_in_words(seen: Observation, policy: ScalePolicy) -> str:
    return (
        f"requests wait {seen.queue_ms:.3g} ms (target {policy.target_queue_ms:g}),"
        f" {seen.pending} in the queue of {seen.workers} (target {policy.target_pending:g} each)"
    )


def _to(seen: Observation, workers: int, reason: str) -> ScalePlan:
    return ScalePlan(workers, reason if workers == seen.workers else f"{reason}: {seen.workers} -> {workers}")
