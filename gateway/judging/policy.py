"""What a rollout's new version may do worse than the old one."""

from __future__ import annotations

from typing import Annotated

import msgspec

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=1)]

# Which part of 1 - confidence each limit has. Evidence is logarithmic: a third of a part takes 1.1 nats more,
# which are a dozen requests of a version that errs in a tenth of them.
PART_OF_ERRORS = 1 / 4
PART_OF_INCREASE = 1 / 4
PART_OF_LATENCY = 1 / 4
PART_OF_COMPARISON = 1 / 12  # of each of the three


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a new version may do worse than the one that it shall replace.

    Args:
        min_requests: a step ends no earlier than the new version has answered so many in it.
        confidence: a version that keeps all limits is rolled back in at most 1 - `confidence` of all
            rollouts.
        max_error_rate: the share of requests that may be answered with an error.
        max_error_increase: by how much that share may be above the old version's.
        max_p99_ratio: how many times the old version's p99 the new one's may be.
        min_p99_ms: a p99 up to this is never too long.
        min_similarity: of both versions' embeddings of the same nodes, see `similarity`; 0: they are not
            judged.
        max_label_disagreement: the share of nodes to which the versions may give different labels.
        min_compared: a step in which answers are compared ends no earlier than so many nodes were; 0 where
            clients do not ask about nodes.
        max_failed_comparisons: the share of compared nodes that the new version alone may fail to answer.
        max_hold_s: a step that has lasted its time, and so long after it has not shown that it may end, goes
            back; none: it waits as long as it takes.
    """

    min_requests: _Count = 100
    confidence: Annotated[float, msgspec.Meta(ge=0.5, lt=1)] = 0.99
    max_error_rate: _Share = 0.02
    max_error_increase: _Share = 0.01
    max_p99_ratio: Annotated[float, msgspec.Meta(ge=1)] = 1.5
    min_p99_ms: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    min_similarity: _Share = 0.9
    max_label_disagreement: _Share = 0.1
    min_compared: Annotated[int, msgspec.Meta(ge=0)] = 200
    max_failed_comparisons: _Share = 0.02
    max_hold_s: Annotated[float, msgspec.Meta(gt=0)] | None = None


def similarity_confidence(policy: Policy, look: int, share: float = 1.0) -> float:
    """With which confidence to bound the similarity of a step the first, second, ... time.

    Other than counts, a bound by the jackknife may not be looked at as often as one likes: each look spends a
    part of what may go wrong, 1/2, 1/6, 1/12, ... As few are needed, it should be computed when there are
    half as many nodes more than the last time, and not before.
    """
    return 1 - (1 - policy.confidence) * share * PART_OF_COMPARISON / (look * (look + 1))
