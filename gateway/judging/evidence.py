"""Evidence in counts that a limit is passed, which may be looked at as often as one likes.

A rollout is looked at several times a second, and each look is one more chance to see a breach where none
is. A test for a number of requests that was fixed before would so be wrong sooner or later. The evidence
here is the ratio of two likelihoods, of a mixture of all rates to the likeliest rate within the limit. If
the limit is kept, that ratio is at most a martingale that begins at 1, and it *ever* reaches 1/a with a
probability of at most a, however often one looks (Ville's inequality); 1/ratio is a p-value. The mixture is
Robbins', 1970 (Howard et al. 2021, "Time-uniform, nonparametric, nonasymptotic confidence sequences";
Johari et al. 2022, "Always valid inference"); that the null's rates may be the likeliest ones, which takes
care of a baseline that is not known exactly, is from Wasserman et al. 2020, "Universal inference". It
depends on nothing but counts, so that there is no look to be remembered.
"""

from __future__ import annotations

from itertools import accumulate

from scipy.optimize import brentq
from scipy.special import betaln, xlog1py, xlogy

from gateway.judging.windows import Latencies, Window

_TINY = 1e-12
# The mixtures of rates, as parameters of beta distributions: what breaks a limit does so severalfold as a
# rule, and a rate that keeps one is near 0. Any mixture is valid; these see what is usual soonest.
_NEAR_ZERO = (0.5, 50.0)


def _above(limit: float) -> tuple[float, float]:
    return 1.0, min(100.0, max(1.0, 1 / (8 * max(limit, 1e-9))))


def evidence_above(hits: int, total: int, limit: float) -> float:
    """Nats, that the rate is above a limit."""
    if hits <= total * limit:
        return 0.0
    return _log_mixture(hits, total, _above(limit)) - _log_likelihood(hits, total, limit)


def evidence_of_increase(candidate: Window, baseline: Window, limit: float) -> float:
    """Nats, that the candidate's error rate is above the baseline's by more than a limit.

    The likeliest pair of rates that keeps the limit has just that difference, as both estimates are beyond
    it: it is that of the score test of Miettinen and Nurminen, 1985.
    """
    hits, total, base_hits, base_total = (
        candidate.errors,
        candidate.requests,
        baseline.errors,
        baseline.requests,
    )

    def slope(rate: float) -> float:
        return (
            hits / (rate + limit)
            - (total - hits) / (1 - rate - limit)
            + base_hits / rate
            - (base_total - base_hits) / (1 - rate)
        )

    low, high = _TINY, 1 - limit - _TINY
    if slope(low) <= 0:
        rate = 0.0
    elif slope(high) >= 0:
        rate = 1 - limit
    else:
        rate = brentq(slope, low, high, xtol=_TINY)
    mixed = _log_mixture(hits, total, _above(limit)) + _log_mixture(base_hits, base_total, _NEAR_ZERO)
    likeliest = _log_likelihood(hits, total, rate + limit) + _log_likelihood(base_hits, base_total, rate)
    return max(0.0, mixed - likeliest)


def upper_quantile_ms(latencies: Latencies, q: float, needed: float) -> float | None:
    """The first bound that a quantile is shown not to be above; None if that is of no bound.

    Args:
        needed: nats, from which on it is shown.
    """
    total = latencies.total
    for bound_ms, below in zip(latencies.bounds_ms, accumulate(latencies.counts), strict=False):
        above = total - below
        if above < total * (1 - q):
            evidence = _log_mixture(above, total, _NEAR_ZERO) - _log_likelihood(above, total, 1 - q)
            if evidence >= needed:
                return bound_ms
    return None


def _log_mixture(hits: int, total: int, mixture: tuple[float, float]) -> float:
    a, b = mixture
    return float(betaln(a + hits, b + total - hits) - betaln(a, b))


def _log_likelihood(hits: int, total: int, rate: float) -> float:
    return float(xlogy(hits, rate) + xlog1py(total - hits, -rate))
