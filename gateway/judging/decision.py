"""Decides from what was observed of two versions whether a rollout goes on.

What may be wrongly taken for a breach, 1 - confidence, is divided among the limits, and by the caller among
steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gateway.judging.evidence import (
    evidence_above,
    evidence_of_increase,
    upper_quantile_ms,
)
from gateway.judging.policy import (
    PART_OF_COMPARISON,
    PART_OF_ERRORS,
    PART_OF_INCREASE,
    PART_OF_LATENCY,
    Policy,
)
from gateway.judging.windows import Window

_SLOWEST = 0.01  # of the requests are above p99
_SMALLEST_P_VALUE = 9  # as a power of ten, that is still told from 0


@dataclass(frozen=True)
class Comparison:
    """How both versions answered the same nodes.

    Args:
        compared: nodes that the baseline answered, and that the candidate was asked for too.
        failed: those of them that the candidate did not answer, or not with finite numbers.
        labels_compared, labels_differ: those to which both gave a label, and to which another.
        similarity, similarity_upper: of the embeddings; None where there are none. See `similarity`.
    """

    compared: int
    failed: int
    labels_compared: int
    labels_differ: int
    similarity: float | None = None
    similarity_upper: float | None = None


@dataclass(frozen=True)
class Names:
    """What the versions are called where a decision is explained."""

    baseline: str = "the baseline"
    candidate: str = "the candidate"


@dataclass(frozen=True)
class Decision:
    """What to do, and in one sentence why."""

    action: Literal["advance", "hold", "roll_back"]
    reason: str


@dataclass(frozen=True)
class _Breach:
    """A limit that is passed by what was observed.

    Args:
        told: what was observed.
        evidence: nats, that it is no chance.
        needed: nats, from which on it is shown.
    """

    told: str
    evidence: float
    needed: float

    @property
    def shown(self) -> bool:
        return self.evidence >= self.needed

    def __str__(self) -> str:
        power = min(_SMALLEST_P_VALUE, self.evidence / math.log(10))
        return f"{self.told}: " + (f"p < 1e-{math.floor(power)}" if power >= 1 else "may be chance")


def decide(
    baseline: Window | None,
    candidate: Window | None,
    comparison: Comparison | None,
    policy: Policy,
    *,
    step_done: bool,
    needs_baseline: bool = True,
    share: float = 1.0,
    names: Names | None = None,
) -> Decision:
    """Whether a step's version goes on, waits or goes back.

    A breach that is shown rolls back at once. One that is only suspected holds what would go on otherwise.

    Args:
        baseline, candidate: what came since one and the same reading at every look, so that they grow; the
            baseline's may have begun earlier. A baseline without requests limits nothing.
        comparison: of all nodes since the step began, each once; None: the step compares no answers.
        step_done: whether the step has lasted its time.
        needs_baseline: whether a step waits for `min_requests` of the baseline too.
        share: the part of `1 - confidence` that may be spent on these windows. Those of all windows of a
            rollout together are at most 1, so that each of ten steps has 0.1.
    """
    case = _Case(baseline, candidate, comparison, policy, share, names or Names())
    breaches = [breach for judge in _JUDGES if (breach := judge(case)) is not None]
    worst = max(breaches, key=lambda breach: breach.evidence - breach.needed, default=None)
    if worst is not None:
        return Decision("roll_back" if worst.shown else "hold", str(worst))
    if not step_done:
        return Decision("hold", f"the step is not over: {_summary(case)}")
    missing = _missing(case, needs_baseline)
    return Decision("hold", missing) if missing else Decision("advance", _summary(case))


def after_deadline(decision: Decision, policy: Policy, held_s: float) -> Decision:
    """The same decision, or to go back where a step has waited for too long.

    Args:
        held_s: since the step had lasted its time.
    """
    if decision.action != "hold" or policy.max_hold_s is None or held_s <= policy.max_hold_s:
        return decision
    late = f"the step has not shown within {policy.max_hold_s:g} s that it may end"
    return Decision("roll_back", f"{late}: {decision.reason}")


@dataclass(frozen=True)
class _Case:
    """All that is judged."""

    baseline: Window | None
    candidate: Window | None
    comparison: Comparison | None
    policy: Policy
    share: float
    names: Names

    def needed(self, part: float) -> float:
        """The evidence, in nats, from which on a breach is shown."""
        return -math.log((1 - self.policy.confidence) * self.share * part)


def _judge_errors(case: _Case) -> _Breach | None:
    candidate, limit = case.candidate, case.policy.max_error_rate
    if candidate is None or candidate.error_rate <= limit:
        return None
    told = f"{_errors_of(case)}, more than {_percent(limit)}"
    evidence = evidence_above(candidate.errors, candidate.requests, limit)
    return _Breach(told, evidence, case.needed(PART_OF_ERRORS))


def _judge_increase(case: _Case) -> _Breach | None:
    candidate, baseline, limit = case.candidate, case.baseline, case.policy.max_error_increase
    if candidate is None or baseline is None or not candidate.requests or not baseline.requests:
        return None
    if candidate.error_rate - baseline.error_rate <= limit:
        return None
    evidence = evidence_of_increase(candidate, baseline, limit)
    return _Breach(_errors_of(case), evidence, case.needed(PART_OF_INCREASE))


def _judge_latency(case: _Case) -> _Breach | None:
    """At most 1% of the candidate's requests may take longer than the baseline's p99 times a ratio.

    That p99 is known only to some bound, which may be too low in half of the cases in which this may go
    wrong.
    """
    if case.candidate is None or case.baseline is None:
        return None
    candidate, baseline, policy = case.candidate.latencies, case.baseline.latencies, case.policy
    if not candidate.total or not baseline.total:
        return None
    needed, evidence = case.needed(PART_OF_LATENCY / 2), 0.0
    bound_ms = upper_quantile_ms(baseline, 1 - _SLOWEST, needed)
    if bound_ms is not None:
        limit_ms = max(bound_ms * policy.max_p99_ratio, policy.min_p99_ms)
        evidence = evidence_above(candidate.num_above(limit_ms), candidate.total, _SLOWEST)
    p99_ms, old_p99_ms = candidate.quantile(1 - _SLOWEST), baseline.quantile(1 - _SLOWEST)
    if p99_ms <= max(old_p99_ms * policy.max_p99_ratio, policy.min_p99_ms) and evidence < needed:
        return None
    return _Breach(_p99s_of(case), evidence, needed)


def _judge_failures(case: _Case) -> _Breach | None:
    pair, limit = case.comparison, case.policy.max_failed_comparisons
    if pair is None or pair.failed <= pair.compared * limit:
        return None
    told = f"{case.names.candidate} fails to answer {_of(pair.failed, pair.compared)} compared nodes"
    return _Breach(told, evidence_above(pair.failed, pair.compared, limit), case.needed(PART_OF_COMPARISON))


def _judge_labels(case: _Case) -> _Breach | None:
    pair, limit = case.comparison, case.policy.max_label_disagreement
    if pair is None or pair.labels_differ <= pair.labels_compared * limit:
        return None
    differ = _of(pair.labels_differ, pair.labels_compared)
    told = f"{case.names.candidate} labels {differ} nodes otherwise than {case.names.baseline}"
    evidence = evidence_above(pair.labels_differ, pair.labels_compared, limit)
    return _Breach(told, evidence, case.needed(PART_OF_COMPARISON))


def _judge_similarity(case: _Case) -> _Breach | None:
    pair, limit = case.comparison, case.policy.min_similarity
    if pair is None or pair.similarity is None or pair.similarity_upper is None or pair.similarity >= limit:
        return None
    told = (
        f"the similarity of {case.names.candidate}'s embeddings to {case.names.baseline}'s is "
        f"{pair.similarity:.2f}, at most {pair.similarity_upper:.2f}, and not {limit:g}"
    )
    needed = case.needed(PART_OF_COMPARISON)
    is_shown = pair.similarity_upper < limit and pair.compared - pair.failed >= case.policy.min_compared
    return _Breach(told, needed if is_shown else 0.0, needed)


_JUDGES: tuple[Callable[[_Case], _Breach | None], ...] = (
    _judge_errors,
    _judge_increase,
    _judge_latency,
    _judge_failures,
    _judge_labels,
    _judge_similarity,
)


def _missing(case: _Case, needs_baseline: bool) -> str:
    """What has to come before a step may end; empty if nothing."""
    wanted = case.policy.min_requests
    versions = [(case.names.candidate, case.candidate)]
    versions += [(case.names.baseline, case.baseline)] if needs_baseline else []
    for name, window in versions:
        requests = window.requests if window else 0
        if requests < wanted:
            return f"{name} has answered {requests:,} of {wanted:,} requests that are needed"
    wanted, pair = case.policy.min_compared, case.comparison
    if pair is not None and pair.compared - pair.failed < wanted:
        return f"{pair.compared - pair.failed:,} of {wanted:,} nodes that are needed have been compared"
    return ""


def _summary(case: _Case) -> str:
    told = [_errors_of(case)]
    if case.candidate and case.candidate.latencies.total:
        told.append(_p99s_of(case))
    pair = case.comparison
    if pair is not None and pair.similarity is not None:
        told.append(f"the similarity of {pair.compared:,} embeddings is {pair.similarity:.2f}")
    if pair is not None and pair.labels_compared:
        told.append(f"{_of(pair.labels_differ, pair.labels_compared)} labels differ")
    return "; ".join(told)


def _errors_of(case: _Case) -> str:
    if case.candidate is None or not case.candidate.requests:
        return f"{case.names.candidate} has had no requests"
    told = f"{case.names.candidate} errs in {_of(case.candidate.errors, case.candidate.requests)} requests"
    if case.baseline is None or not case.baseline.requests:
        return told
    rate = _percent(case.baseline.error_rate)
    return f"{told}, {case.names.baseline} in {rate} of {case.baseline.requests:,}"


def _p99s_of(case: _Case) -> str:
    versions = ((case.names.candidate, case.candidate), (case.names.baseline, case.baseline))
    told = [
        f"{name}'s {window.latencies.quantile(1 - _SLOWEST):.3g} ms"
        for name, window in versions
        if window and window.latencies.total
    ]
    return f"p99 is {' and '.join(told)}"


def _of(hits: int, total: int) -> str:
    return f"{_percent(hits / total)} of {total:,}"


def _percent(rate: float) -> str:
    return f"{100 * rate:.0f}%" if rate >= 0.1 else f"{100 * rate:.2g}%"
