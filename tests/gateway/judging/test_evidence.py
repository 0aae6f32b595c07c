"""Evidence is never stronger than chance allows, however often it is looked at."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from gateway.judging.decision import decide
from gateway.judging.evidence import evidence_above, evidence_of_increase
from gateway.judging.policy import Policy
from gateway.judging.similarity import similarity
from gateway.judging.windows import Latencies, Window

_BOUNDS = (10.0, 12.0, 14.0, 16.0, 20.0)


def _window(requests: int, errors: int = 0, bucket: int = 0) -> Window:
    counts = [0] * (len(_BOUNDS) + 1)
    counts[bucket] = requests
    return Window(10, requests, errors, 0, Latencies(_BOUNDS, tuple(counts)))


@given(st.integers(1, 3_000), st.integers(0, 3_000), st.sampled_from([0.01, 0.02, 0.1]))
def test_the_exact_binomial_test_agrees_to_more(total: int, hits: int, limit: float) -> None:
    hits = min(hits, total)
    assert binom.sf(hits - 1, total, limit) <= math.exp(-evidence_above(hits, total, limit)) + 1e-12


def test_a_difference_at_the_limit_is_hardly_ever_evidence() -> None:
    """Of 300 pairs that are looked at 60 times, fewer than 0.2 ever have the evidence for p < 0.2."""
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(300):
        errors, base = (np.cumsum(rng.binomial(20, rate, 60)) for rate in (0.06, 0.05))
        looks = zip(errors.tolist(), base.tolist(), range(20, 1_201, 20), strict=True)
        pairs = ((_window(total, hits), _window(total, hits_base)) for hits, hits_base, total in looks)
        found += any(
            candidate.error_rate - baseline.error_rate > 0.01
            and evidence_of_increase(candidate, baseline, 0.01) >= math.log(5)
            for candidate, baseline in pairs
        )
    assert found < 60


def test_the_likeliest_rates_of_an_increase_by_hand() -> None:
    """Without errors of the baseline, and a limit of 0, both have the rate of all requests together."""
    few = evidence_of_increase(_window(10, 5), _window(10, 0), 0.0)
    ratio = 5 * math.log(5 / 20) + 15 * math.log(15 / 20)
    a, b = 1.0, 100.0
    candidate = math.lgamma(a + 5) + math.lgamma(b + 5) - math.lgamma(a + b + 10) + math.log(b)
    of_base = math.lgamma(60) - math.lgamma(60.5) - math.lgamma(50) + math.lgamma(50.5)
    assert few == pytest.approx(max(0.0, candidate + of_base - ratio))


def test_what_takes_longer_within_the_ratio_is_let_be() -> None:
    baseline = _window(5_000, bucket=0)
    for bucket, action in ((2, "advance"), (5, "roll_back")):
        decision = decide(baseline, _window(500, bucket=bucket), None, Policy(), step_done=True)
        assert decision.action == action


def test_a_smaller_share_takes_more_evidence() -> None:
    def action(share: float) -> str:
        return decide(None, _window(60, 9), None, Policy(), step_done=False, share=share).action

    assert (action(1), action(1e-6)) == ("roll_back", "hold")


@pytest.mark.parametrize("factor", [10, 1e3, 1e6])
def test_a_node_far_from_all_others_does_not_make_equal_embeddings_differ(factor: float) -> None:
    x = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32)
    x[7] *= factor
    assert similarity(x, x.copy(), 0.99) == (pytest.approx(1), pytest.approx(1))
